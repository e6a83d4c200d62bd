"""The version of the distribution, written by `make version`; the build reads it from here."""

__version__ = "0.3.0"
