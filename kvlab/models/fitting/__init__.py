"""Fit the learned parts of methods to a model: feature maps, score networks, head profiles, query statistics."""
