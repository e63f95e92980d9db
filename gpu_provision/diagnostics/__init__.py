"""Why a pod is not ready (`pods`), what a symptom means (`remedies`), and findings about it (`failures`). Pure."""
