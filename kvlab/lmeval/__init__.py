"""lm-eval, the field's harness, over compressed caches: its tasks and metrics, kvlab's caches and rows."""
