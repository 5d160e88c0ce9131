"""Fit the learned parts of methods to a model: LESS's feature maps, KVzap's networks, head profiles, query statistics."""
