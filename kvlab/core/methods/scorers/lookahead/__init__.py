"""Scores by the attention that future queries are expected to give."""
