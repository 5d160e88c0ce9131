"""Scorers that wrap other scorers."""
