"""The figure atlas: every figure and table of the five papers, drawn from what the user recorded."""
