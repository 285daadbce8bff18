"""Counts what the service does, for Prometheus and for its own page."""

from agent_runtime.metering.engine_look import EngineLook
from agent_runtime.metering.metering import Metering
from agent_runtime.metering.window import Rolling

__all__ = ["EngineLook", "Metering", "Rolling"]
