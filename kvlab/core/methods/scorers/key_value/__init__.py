"""Scores from keys, values and positions."""
