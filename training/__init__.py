"""Training recipes of models shipped with kvlab; not part of the installed package."""
