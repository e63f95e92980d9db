"""Taking over a cluster that the GPU Operator's chart has provisioned: what is there, and what becomes of it. Pure."""
