"""The exhibits of PyramidPool."""
