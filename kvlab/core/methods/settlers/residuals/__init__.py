"""Settlers that merge victims into a few residual slots."""
