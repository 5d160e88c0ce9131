"""The exhibits of KeepKV (Tian et al., arXiv 2504.09936)."""
