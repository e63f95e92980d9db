"""Connectors that pyinfra finds by entry point: a cluster as a host, and the sandbox's simulated hosts."""
