"""Norms over the last dimension, alone or after a residual addition."""
