"""Tasks of lm-eval (EleutherAI's evaluation harness) under compressed caches, with results as kvlab's rows."""
