"""Readings: which slots of the cache a decode step reads. One file each; importing this package registers all."""

from importlib import import_module

from kvlab.core.contract.reading import EVERYTHING, READINGS, Reading, reading_of

__all__ = ["EVERYTHING", "READINGS", "Reading", "reading_of"]

SHOWN = (
    "oracle", "random_slots", "quest", "double_sparsity", "magicpig", "vattention", "rocketkv", "pqcache", "retroinfer",
    "shadowkv",
)  # fmt: skip
for _name in SHOWN:
    import_module(f"{__name__}.{_name}")
