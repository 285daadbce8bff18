"""A service for the tests of programs that use the SDK: `FakeService` (docs/sdk.md, Tests of your own)."""

from agent_runtime.testing import *  # noqa: F403 -- the same names at their public place
