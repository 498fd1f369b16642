"""Linear layers with float, 8-bit and 4-bit weights."""
