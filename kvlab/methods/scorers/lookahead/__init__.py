"""Scores from attention that future queries would pay."""
