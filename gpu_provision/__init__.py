"""Declarative provisioning of NVIDIA GPU nodes for Kubernetes."""
