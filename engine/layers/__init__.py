"""The decoder's linear maps, stored as is fastest on the device: plain, packed or quantised."""

from engine.projections.decoder_weights import DecoderWeights, LayerWeights
from engine.projections.lora import Adapter, AdapterRows, AdapterSet, ProjectionKind
from engine.projections.types import Projection, Quantization

__all__ = [
    "Adapter",
    "AdapterRows",
    "AdapterSet",
    "DecoderWeights",
    "LayerWeights",
    "Projection",
    "ProjectionKind",
    "Quantization",
]
