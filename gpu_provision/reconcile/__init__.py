"""Runs a plan: live objects in, actions out, until every node has settled."""
