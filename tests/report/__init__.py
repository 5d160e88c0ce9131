"""A package, so that its browser lives as long as its tests and no longer."""
