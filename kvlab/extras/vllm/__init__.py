"""kvlab's methods inside vLLM on a CPU: an attention backend, and how its results agree with kvlab's own."""
