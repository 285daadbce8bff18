"""One model on several ranks (processes or cards), each with a part of every layer (Megatron-LM, arXiv 1909.08053)."""

from engine.tensor_parallel.decoder import ShardDecoder
from engine.tensor_parallel.group import RankGroup
from engine.tensor_parallel.ranks import RankSetup, start_ranks
from engine.tensor_parallel.shard import Shard, load_shard

__all__ = ["RankGroup", "RankSetup", "Shard", "ShardDecoder", "load_shard", "start_ranks"]
