"""KV of prefixes that several engines share through a server. See docs/scale.md."""

from engine.prefix_tier.shared_prefixes import SharedPrefixes, TierStats, build_shared_prefixes
from engine.prefix_tier.tier import PrefixTier, TierFault

__all__ = ["PrefixTier", "SharedPrefixes", "TierFault", "TierStats", "build_shared_prefixes"]
