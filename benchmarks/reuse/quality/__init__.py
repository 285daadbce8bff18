"""What reuse does to answers: probes whose answer an edit changes or leaves alone, and how far each mode is off."""
