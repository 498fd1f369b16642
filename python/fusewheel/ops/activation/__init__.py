"""Activations, alone or as a gate."""
