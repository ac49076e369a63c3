"""Seeing and measuring: pages and experiments."""
