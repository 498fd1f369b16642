"""Fused operators on several devices."""
