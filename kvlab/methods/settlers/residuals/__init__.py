"""What must go is gathered in a few residual slots."""
