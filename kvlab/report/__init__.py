"""Report of one comparison: the question, which runs answered, their cost, and caveats."""
