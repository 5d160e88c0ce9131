"""What must go is merged into its like: neighbours, or the most similar slot that stays."""
