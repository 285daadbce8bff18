"""Merges lazy snippets by rule, where no line can be lost; `editor.reader` reads the rest."""
