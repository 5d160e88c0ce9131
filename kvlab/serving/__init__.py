"""What a serving engine would have to hold for a method: levels, pages, traffic. Torch-free."""
