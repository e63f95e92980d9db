"""The simulated cluster: API server, controllers, nodes and hosts; README.md in this directory explains it."""
