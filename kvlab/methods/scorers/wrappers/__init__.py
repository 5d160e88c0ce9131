"""Scorers made of other scorers."""
