"""Manage a folder of runs: list, search, label, delete, export and import. Torch-free."""
