"""SwiGLU."""

from kernels.swiglu.reference import swiglu

__all__ = ["swiglu"]
