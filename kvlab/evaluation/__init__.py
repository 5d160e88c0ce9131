"""Evaluate methods on the same prompts: one row per sample, means with intervals, paired differences."""
