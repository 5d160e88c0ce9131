"""The page Serving."""
