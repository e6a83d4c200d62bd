"""Configuration, authentication and REST: the only package that speaks to an API server."""
