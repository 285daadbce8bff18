"""Requests, options and results of the SDK."""

from agent_runtime.types import *  # noqa: F403 -- the same names at their public place
