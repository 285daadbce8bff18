"""What the service adds to the merge, and how it holds under load."""
