"""Mixtures of experts: rows that are sorted by expert, and a weight for each."""
