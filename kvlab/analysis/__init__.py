"""Computations on recorded tables with numpy and pandas only."""
