"""What must go is dropped."""
