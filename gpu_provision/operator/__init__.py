"""Operator mode: a stack as a custom resource, and a controller that keeps the cluster as it says."""
