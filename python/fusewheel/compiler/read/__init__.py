"""Reads what parts of a graph mean: attention, masks, positions, losses, gated activations."""
