"""Allocators: budgets over layers and heads."""
