"""The exhibits of ZSMerge."""
