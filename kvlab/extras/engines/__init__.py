"""Serving engines' own cache compression beside kvlab's methods, on the same prompts."""
