"""Settlers that evict victims."""
