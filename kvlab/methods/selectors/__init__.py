"""Selectors: choose victims."""
