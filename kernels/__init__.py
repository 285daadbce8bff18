"""Tensor operations, one folder an op, each with its plain PyTorch reference."""
