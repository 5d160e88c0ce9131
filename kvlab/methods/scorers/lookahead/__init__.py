"""Scores from attention that queries to come would pay."""
