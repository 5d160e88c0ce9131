"""Prefixes: a text that a model has read and a method has compressed, kept in a file and asked many times."""

from kvlab.engine.prefix.prefix import Answer, Prefix

__all__ = ["Answer", "Prefix"]
