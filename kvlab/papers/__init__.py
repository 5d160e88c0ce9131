"""The figure atlas: every figure and table of the five papers, drawn from the user's own data."""
