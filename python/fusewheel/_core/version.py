"""The version of all three packages."""

__version__ = "0.1.0"
