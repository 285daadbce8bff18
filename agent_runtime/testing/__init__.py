"""For tests of programs that use the SDK: a service that answers what the test tells it to (docs/sdk.md)."""

from agent_runtime.testing.fake_service import FakeService
from agent_runtime.testing.scripted import Events, Lines, Recorded, Reply, merged_result

__all__ = ["Events", "FakeService", "Lines", "Recorded", "Reply", "merged_result"]
