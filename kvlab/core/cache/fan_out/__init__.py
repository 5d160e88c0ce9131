"""One transformers cache that serves several compressed caches in the same passes of the model."""
