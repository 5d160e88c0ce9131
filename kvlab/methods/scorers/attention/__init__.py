"""Scores from attention that was really paid."""
