"""Scorers: importance of slots."""
