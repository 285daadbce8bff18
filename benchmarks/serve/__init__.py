"""What the service costs beside the merge, and what becomes of it under load."""
