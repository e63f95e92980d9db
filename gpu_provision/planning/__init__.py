"""Desired and observed state to a plan; pure."""
