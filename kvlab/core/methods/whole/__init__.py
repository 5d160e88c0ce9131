"""Methods that keep every token."""
