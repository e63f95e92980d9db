"""Acceptance tests of hosts and clusters with pytest, and fixtures for your own tests."""
