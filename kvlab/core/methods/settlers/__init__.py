"""Settlers: what happens to victims."""
