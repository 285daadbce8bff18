"""Everything that asks a language model: merges, choices among readings, and chat."""
