"""What one tenant may take of the service, so that there is something left for the others."""

from agent_runtime.quotas.queue import Places, Turns
from agent_runtime.quotas.tenants import Shares, TenantLimits, Tenants

__all__ = ["Places", "Shares", "TenantLimits", "Tenants", "Turns"]
