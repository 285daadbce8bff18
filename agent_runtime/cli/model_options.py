"""The options that say how a model is loaded, the same for every command that loads one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.models.settings import Dtype, Quantize

DTYPE = Annotated[Dtype, typer.Option("--dtype", help="Of the weights; bfloat16 is fast, float32 exact.")]
QUANTIZE = Annotated[
    Quantize | None, typer.Option("--quantize", help="Store the weights in fewer bits: smaller, less exact.")
]
ADAPTER = Annotated[
    Path | None, typer.Option("--adapter", metavar="DIR", help="A LoRA adapter (PEFT) to merge into the model.")
]
SPAN_MEMORY = Annotated[
    float, typer.Option("--span-memory", min=0.0, metavar="GIB", help="For KV that --reuse fast takes over; 0: none.")
]
SPAN_DISK = Annotated[
    float, typer.Option("--span-disk", min=0.0, metavar="GIB", help="Of disk, to keep that across starts; 0: none.")
]
BATCH_INVARIANT = Annotated[
    bool, typer.Option("--batch-invariant", help="The same bits whatever runs beside an edit; takes longer.")
]
