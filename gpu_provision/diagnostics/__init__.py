"""Find the first cause of a pod that is not ready (`pods`), and the remedy of a failed state (`failures`)."""
