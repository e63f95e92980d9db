"""Why a pod is not ready (`pods`); remedies of symptoms, and findings about failed states (`failures`)."""
