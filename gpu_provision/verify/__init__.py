"""Acceptance tests of hosts and clusters: pytest tests that look for themselves, and the fixtures to write more."""
