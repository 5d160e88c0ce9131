"""Attention over slots, and its registration with transformers."""

from kvlab.core.attention.transformers_hook import ATTENTION_NAME, register_attention

__all__ = ["ATTENTION_NAME", "register_attention"]
