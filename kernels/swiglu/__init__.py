"""SwiGLU."""

from kernels.swiglu.dispatch import swiglu

__all__ = ["swiglu"]
