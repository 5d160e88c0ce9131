"""Sparse attention: which slots a decode step reads. One file each; importing this package registers all."""

from importlib import import_module

from kvlab.core.contract.sparse_attention import (
    EVERYTHING,
    SPARSE_ATTENTIONS,
    Reading,
    SparseAttention,
    sparse_attention_of,
)

__all__ = ["EVERYTHING", "SPARSE_ATTENTIONS", "Reading", "SparseAttention", "sparse_attention_of"]

SHOWN = (
    "oracle", "random_slots", "quest", "double_sparsity", "magicpig", "vattention", "rocketkv", "pqcache", "retroinfer",
    "shadowkv",
)  # fmt: skip
for _name in SHOWN:
    import_module(f"{__name__}.{_name}")
