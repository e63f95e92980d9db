"""Simulated nodes: machines that register with a cluster and run the pods bound to them."""
