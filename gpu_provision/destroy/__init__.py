"""Taking a stack off a cluster again: what of it is ours, in which order it goes, and what stays. Pure."""
