"""How many forward passes each way of drafting takes to write an edited file, counted without a clock."""
