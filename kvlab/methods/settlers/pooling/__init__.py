"""Slots next to each other are pooled into one."""
