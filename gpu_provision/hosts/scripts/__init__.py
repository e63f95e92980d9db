"""Shell scripts that restart a container runtime and take a change back that it does not survive."""
