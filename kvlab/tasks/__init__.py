"""Generated tasks that test what a compressed cache loses, and loaders for users' files."""
