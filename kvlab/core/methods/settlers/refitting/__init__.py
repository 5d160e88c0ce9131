"""Settlers that evict, and refit the kept slots to compensate."""
