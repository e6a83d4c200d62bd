"""The version of the distribution; the build reads it from here, and a test keeps all three equal."""

__version__ = "0.2.0"
