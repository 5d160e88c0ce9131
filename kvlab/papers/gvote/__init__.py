"""The exhibits of GVote (Tang et al., arXiv 2509.03136)."""
