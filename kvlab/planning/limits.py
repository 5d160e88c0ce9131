"""Bounds the engine keeps to, in numbers that a plan needs too."""

from __future__ import annotations

# Logits of the whole prompt are kept only while they fit in a gigabyte of float32.
MOST_PROMPT_LOGITS = 2**28
# A layer's attention rows are kept in host memory, and then on disk, up to this.
MOST_ATTENTION_BYTES = 2**29
# The probe: rows of the prompt's end whose attention is kept, and the most that all layers together may take on disk.
PROMPT_ROWS = 64
MOST_HISTORY_BYTES = 2**29
# Of the continuation, how many tokens the probe looks at.
MOST_FUTURE = 64
# Queries scored at a time against all slots: `kvlab.attention.slot_attention.ROW_BLOCK`, held equal by a test.
ROW_BLOCK = 256
