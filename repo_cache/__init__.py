"""A watched folder as immutable snapshots of tokens and spans, at the price of what changed."""
