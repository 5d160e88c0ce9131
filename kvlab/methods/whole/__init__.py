"""Methods that drop and merge nothing."""
