"""Frozen values that every other part speaks in; imports nothing else of this project."""
