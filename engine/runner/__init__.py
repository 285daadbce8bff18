"""Runs the forward pass of a step, on a CPU by torch or on a card by Triton kernels, and verifies drafts."""
