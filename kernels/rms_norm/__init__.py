"""RMSNorm, alone and of a residual stream that something is added to first."""

from kernels.rms_norm.dispatch import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
