"""What one tenant may take of the service, so that there is something left for the others."""

from agent_runtime.quotas.queue import CpuSlots, FairQueue
from agent_runtime.quotas.tenants import Shares, TenantLimits, TenantRateLimiter

__all__ = ["CpuSlots", "FairQueue", "Shares", "TenantLimits", "TenantRateLimiter"]
