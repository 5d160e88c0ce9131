"""The dashboard in real Chromium: a package, so that its fixtures live as long as its tests and no longer."""
