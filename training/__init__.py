"""Training recipes of models that ship with kvlab; not part of the installed package."""
