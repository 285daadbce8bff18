"""Which form of prompt a model follows best."""
