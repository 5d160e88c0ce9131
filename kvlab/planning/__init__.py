"""What can be chosen, and what a request or a serving engine would hold, from shapes, before anything is loaded."""
