"""What was fitted to a model, as files: read, held against the model's weights, and given to the method that asks."""
