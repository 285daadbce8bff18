"""Has the engine answer prompts, and tells whoever watches what it writes."""
