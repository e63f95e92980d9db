"""Views of plans, runs, states and findings: pure functions from a value to text or a JSON-able dict."""
