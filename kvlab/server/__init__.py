"""Users of a server that a group shares.

Independent of the web, the model stack and runs; a single-user lab has no settings.
"""
