"""The apply pipeline: merges by rule, asks a model where no rule decides, verifies; writes nothing."""
