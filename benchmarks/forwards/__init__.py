"""Count the forward passes that each way of drafting takes to write an edited file."""
