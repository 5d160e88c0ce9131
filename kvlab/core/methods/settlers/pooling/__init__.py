"""Settlers that pool adjacent slots."""
