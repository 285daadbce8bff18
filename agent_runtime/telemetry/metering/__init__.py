"""Counts what the service does, for Prometheus and for its own page."""

from agent_runtime.telemetry.metering.engine_look import EngineLook
from agent_runtime.telemetry.metering.metering import Metering
from agent_runtime.telemetry.metering.window import Rolling

__all__ = ["EngineLook", "Metering", "Rolling"]
