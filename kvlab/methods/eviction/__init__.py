"""Methods that drop what must go."""
