"""What the demo runs: weights, their formats, text, and a model in use."""
