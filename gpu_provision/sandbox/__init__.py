"""The embedded cluster: API server, controllers, simulated nodes and hosts."""
