"""What must go is dropped, and what stays is refitted to make up for it."""
