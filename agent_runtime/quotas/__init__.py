"""What one tenant may take of the service, so that there is something left for the others."""

from agent_runtime.limiting.places import Places
from agent_runtime.limiting.shares import Shares
from agent_runtime.limiting.tenants import TenantLimits, Tenants
from agent_runtime.limiting.turns import Turns

__all__ = ["Places", "Shares", "TenantLimits", "Tenants", "Turns"]
