"""The exhibits of KVMerger (Wang et al., arXiv 2407.08454)."""
