"""Model runners: one step of the decoder over all scheduled sequences."""
