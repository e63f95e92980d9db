"""The host phase: what must be true of a machine before any container of the stack runs on it."""
