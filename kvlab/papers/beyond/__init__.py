"""Claims of methods beyond the five papers, as far as a small model and its tasks can check them."""
