"""Finds patterns in a graph, checks them, and replaces them by operators."""
