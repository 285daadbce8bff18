"""The engine's passes on a card: paged attention, one copy there and one back, and graphs of the shapes that recur."""
