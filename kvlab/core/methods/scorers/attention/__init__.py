"""Scores from observed attention."""
