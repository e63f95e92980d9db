"""Why a pod is not ready (`pods`); what a symptom means, and findings about failed states (`failures`)."""
