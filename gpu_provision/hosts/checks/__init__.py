"""Preflight rules for hosts: pure functions of facts and declarations."""
