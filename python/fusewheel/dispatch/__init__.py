"""What an operator is, and how it is registered with PyTorch's dispatcher."""
