"""Prefixes: a text that a model has read and a method has compressed, kept in a file and asked many times."""

from kvlab.prefix.passes import Answer
from kvlab.prefix.prefix import Prefix

__all__ = ["Answer", "Prefix"]
