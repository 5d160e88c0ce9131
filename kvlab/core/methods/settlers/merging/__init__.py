"""Settlers that merge victims into neighbours or the most similar kept slot."""
