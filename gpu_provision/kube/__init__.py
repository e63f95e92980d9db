"""The one door to an API server: the only package that imports kubernetes."""
