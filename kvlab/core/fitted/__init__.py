"""Fitted files: read them, check that they belong to the model's weights, and hand them to methods."""
