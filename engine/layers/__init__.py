"""The decoder's linear maps, stored in the fastest way for the device: plain, packed or quantised."""

from engine.layers.decoder_weights import DecoderWeights, LayerWeights
from engine.layers.experts import Experts
from engine.layers.latent import LatentProjections
from engine.layers.linear import Projection, Quantization
from engine.layers.lora import NO_ADAPTERS, Adapter, AdapterRows, AdapterSet, MaskedAdapters, ProjectionKind

__all__ = [
    "NO_ADAPTERS",
    "Adapter",
    "AdapterRows",
    "AdapterSet",
    "DecoderWeights",
    "Experts",
    "LatentProjections",
    "LayerWeights",
    "MaskedAdapters",
    "Projection",
    "ProjectionKind",
    "Quantization",
]
