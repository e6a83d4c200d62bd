"""Prometheus' text format: a writer, a reader, and the library's own metrics on it."""
