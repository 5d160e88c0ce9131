"""Talk to a model through several caches side by side: one reading of the context, one batch for all answers."""
