"""The embedded cluster: API server, controllers, simulated nodes and hosts; README.md in this folder explains it."""
