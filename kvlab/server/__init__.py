"""A server that a group shares: who asks, what they may do, and how much.

Nothing here knows the web, the model stack or a run: other rooms ask, and a lab of one has no settings at all.
"""
