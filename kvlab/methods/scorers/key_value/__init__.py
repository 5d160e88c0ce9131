"""Scores from keys, values and places."""
