"""Everything a person or a program touches: service, command line, prompts, model catalogue."""
