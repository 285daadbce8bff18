"""`hunk plan`: what a model takes on a machine, in memory and in seconds, before there is either."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_runtime.cli.options import JSON
from agent_runtime.cli.render import print_faults_as_json, print_table
from agent_runtime.config.sources import make_model_settings
from agent_runtime.errors import BadRequest, find_nearest
from agent_runtime.models.config import HUB_MODELS, find_hub_model

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.roofline.costs import Deployment
    from engine.roofline.machine import Machine

VERIFIED = (1, 4, 16, 64, 256)
"""Rows of the verify passes that are shown."""

PLOTTED = tuple(2**power for power in range(11))


@print_faults_as_json
def plan_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name, a config.json or its folder, or a .gguf file.")
    ],
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="A card, or `measured`: this CPU.")
    ] = "measured",
    context: Annotated[int, typer.Option("--context", help="Tokens of a sequence.", min=1)] = 8192,
    users: Annotated[int, typer.Option("--users", help="Sequences that are written at once.", min=1)] = 16,
    replicas: Annotated[int, typer.Option("--replicas", help="Copies of the model, each on its own cards.", min=1)] = 1,
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="bfloat16, fp8, int8 or int4. [default: bfloat16; measured: as served]"),
    ] = None,
    cards: Annotated[int, typer.Option("--cards", help="Cards that share each layer (tensor parallel).", min=1)] = 1,
    tier_gb_s: Annotated[
        float, typer.Option("--tier-gb-s", help="Gigabytes a second from a shared tier of KV.", min=1e-3)
    ] = 12.5,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write the passes by rows as a PNG.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show what a model takes on a machine: memory, users that fit, and the least seconds of its passes.

    The seconds of a card are the floor that its public figures allow; a pass takes longer. Those of `--device measured`
    follow from products and memory reads that are timed now. Names are those of `hunk models list` and of
    engine/roofline/shapes.json, cards those of cards.json beside it.
    """
    deployment = _build_deployment(model, device, weights, cards)
    facts = describe(deployment, context, users, replicas, tier_gb_s) | {"model": model, "device": device}
    if plot is not None:
        write_plot(deployment, context, plot)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        print_plan(facts)


def _build_deployment(model: str, device: str, weights: str | None, cards: int) -> Deployment:
    from engine.roofline.costs import Attention, Deployment

    config = find_config(model)
    machine, chosen = _find_machine(device)
    weights = weights or chosen
    if weights not in machine.flops_s:
        raise BadRequest(
            f"{machine.name} does not multiply {weights!r} weights; give one of {', '.join(machine.flops_s)}",
            field="weights",
        )
    if device == "measured" and cards > 1:
        raise BadRequest("--cards is for cards; leave it out with --device measured", field="cards")
    if config.num_heads % cards:
        raise BadRequest(f"{config.num_heads} heads do not divide among {cards} cards", field="cards")
    return Deployment(config, machine, Attention.from_config(config), weights, num_cards=cards)


def find_config(model: str) -> ModelConfig:
    """Return the shape of a model by its name or path; raises BadRequest if it is unknown, or cannot be planned."""
    from engine.errors import WeightsError
    from engine.families import parse_config
    from engine.roofline.machine import SHAPES
    from engine.weights.checkpoint import read_json
    from engine.weights.gguf import GGUFModel

    path, hub = Path(model).expanduser(), find_hub_model(model)
    try:
        if model in SHAPES or hub is not None:
            return parse_config(SHAPES[model] if hub is None else hub.shape)
        if path.suffix == ".gguf" and path.is_file():
            return GGUFModel(path).config
        if path.is_dir() or path.suffix == ".json":
            return parse_config(read_json(path / "config.json" if path.is_dir() else path))
    except WeightsError as error:
        raise BadRequest(f"{model} cannot be planned: {error}", field="model") from error
    if path.suffix in (".gguf", ".json") or len(path.parts) > 1:
        raise BadRequest(f"there is no model at {model}; give a config.json, its folder or a .gguf file", field="model")
    names = [*SHAPES, *(each.name for each in HUB_MODELS)]
    near = find_nearest(model, names)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(names)}; or give a config.json or a .gguf file"
    raise BadRequest(f"no model is called {model!r}: {hint}", field="model")


def _find_machine(device: str) -> tuple[Machine, str]:
    """Return the machine, and the dtype in which weights are served there."""
    from engine.roofline.machine import CARDS, get_card, measure_machine

    if device in CARDS:
        return get_card(device), "bfloat16"
    if device != "measured":
        raise BadRequest(f"no card is called {device!r}; give one of {', '.join(CARDS)}, or measured", field="device")
    import torch

    from engine.device import describe_machine
    from engine.precision import choose_precision, load_or_measure_products

    folder, cpu = make_model_settings(os.environ).cache_dir / "pass-times", torch.device("cpu")
    precision = choose_precision("auto", "auto", cpu, lambda: load_or_measure_products(folder))
    served = precision.quantize or str(precision.stored).removeprefix("torch.")
    return measure_machine(describe_machine(cpu), precision), served


def describe(deployment: Deployment, context: int, users: int, replicas: int, tier_gb_s: float) -> dict[str, Any]:
    """Return all figures of a plan, for JSON."""
    from engine.roofline.costs import list_products, list_variants

    prompt_s = deployment.cost_pass(1, context, context, scored=1).seconds
    kv_token_bytes = deployment.kv_token_bytes * deployment.num_cards
    passes = {
        f"prompt of {context:,}": deployment.cost_pass(1, context, context, scored=1),
        f"decode, {users} users": deployment.cost_pass(users, 1, context),
        **{f"verify {rows}, 1 user": deployment.cost_pass(1, rows, context) for rows in VERIFIED},
    }
    return {
        "machine": deployment.machine.name,
        "source": deployment.machine.source,
        "weights": deployment.weights,
        "cards": deployment.num_cards,
        "replicas": replicas,
        "context": context,
        "users": users,
        "weight_gb": deployment.weight_bytes / 1e9,
        "memory_gb": deployment.machine.memory_bytes / 1e9,
        "pool_gb": deployment.pool_bytes / 1e9,
        "kv_token_kb": kv_token_bytes / 1e3,
        "users_that_fit": replicas * deployment.count_users(context),
        "decode_tok_s": replicas * users / deployment.cost_pass(users, 1, context).seconds,
        "free_rows": deployment.count_free_rows(context),
        "tier": {
            "fetch_s": context * kv_token_bytes / (tier_gb_s * 1e9),
            "prompt_s": prompt_s,
            "break_even_gb_s": context * kv_token_bytes / prompt_s / 1e9,
        },
        "products": [
            asdict(each) | {"flops_each_row": 2 * each.num_weights * each.share}
            for each in list_products(deployment.config)
        ],
        "passes": {name: asdict(cost) for name, cost in passes.items()},
        "variants": {
            name: _summarise(each, context, users)
            for name, each in {"as it is": deployment, **list_variants(deployment)}.items()
        },
    }


def _summarise(deployment: Deployment, context: int, users: int) -> dict[str, float]:
    return {
        "weight_gb": deployment.weight_bytes / 1e9,
        "kv_token_kb": deployment.kv_token_bytes / 1e3,
        "users_that_fit": deployment.count_users(context),
        "decode_tok_s": users / deployment.cost_pass(users, 1, context).seconds,
        "prompt_s": deployment.cost_pass(1, context, context, scored=1).seconds,
        "verify_64_ms": 1e3 * deployment.cost_pass(1, 64, context).seconds,
        "free_rows": deployment.count_free_rows(context),
    }


def print_plan(facts: Mapping[str, Any]) -> None:
    """Print the figures as tables."""
    on = f"{facts['cards']} x {facts['machine']}" if facts["cards"] > 1 else facts["machine"]
    typer.echo(f"{facts['model']} in {facts['weights']} on {on} ({facts['source']})")
    each = " on each card" if facts["cards"] > 1 else ""
    typer.echo(
        f"weights {facts['weight_gb']:.2f} GB of {facts['memory_gb']:.0f} GB{each}, pool {facts['pool_gb']:.1f} GB; "
        f"KV {facts['kv_token_kb']:.1f} kB a token"
    )
    copies = f" on {facts['replicas']} replicas" if facts["replicas"] > 1 else ""
    written = f"{facts['users']} {'on each' if facts['pool_gb'] else 'users'}"
    written += f" write at most {facts['decode_tok_s']:,.0f} tokens a second in all"
    if facts["pool_gb"]:
        typer.echo(f"{facts['users_that_fit']:,} users of {facts['context']:,} tokens fit{copies}; {written}\n")
    else:
        typer.echo(f"the weights do not fit: take fewer bits (--weights) or more --cards; if they did, {written}\n")
    print_table(
        ("products", "of a pass", "weights each", "MFLOP a row"),
        [
            (
                one["name"],
                str(one["count"]),
                f"{one['num_weights']:,}",
                f"{one['count'] * one['flops_each_row'] / 1e6:,.1f}",
            )
            for one in facts["products"]
        ],
    )
    typer.echo("")
    print_table(
        ("pass", "GFLOP", "GB read", "KV GB", "ms", "tok/s", "bound by"),
        [
            (
                name,
                f"{cost['flops'] / 1e9:,.1f}",
                f"{cost['weight_bytes'] / 1e9:.2f}",
                f"{cost['kv_bytes'] / 1e9:.2f}",
                f"{1e3 * cost['seconds']:,.2f}",
                f"{cost['rows'] / cost['seconds']:,.0f}",
                cost["bound"],
            )
            for name, cost in facts["passes"].items()
        ],
    )
    typer.echo("")
    print_table(
        (
            "what if",
            "GB",
            "KV kB",
            "users",
            "tok/s",
            "prompt s",
            "64 rows ms",
            "free rows",
        ),
        [
            (
                name,
                f"{one['weight_gb']:.2f}",
                f"{one['kv_token_kb']:.1f}",
                f"{one['users_that_fit']:,}",
                f"{one['decode_tok_s']:,.0f}",
                f"{one['prompt_s']:.3g}",
                f"{one['verify_64_ms']:.3g}",
                str(one["free_rows"]),
            )
            for name, one in facts["variants"].items()
        ],
    )
    tier = facts["tier"]
    wins = "pays" if tier["fetch_s"] < tier["prompt_s"] else "does not pay"
    typer.echo(
        f"\nof one user, {facts['free_rows']} rows take at most a tenth longer than one: such a draft is nearly free\n"
        f"a shared tier {wins}: {facts['context']:,} tokens are fetched in {tier['fetch_s']:.3g} s and computed in "
        f"{tier['prompt_s']:.3g} s; it pays from {tier['break_even_gb_s']:.3g} GB/s on"
    )


def write_plot(deployment: Deployment, context: int, file: Path) -> None:
    """Write the seconds of a pass by its rows, for each variant, as a PNG; raises BadRequest without matplotlib."""
    from engine.roofline.costs import list_variants

    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise BadRequest("--plot needs matplotlib: `pip install matplotlib`", field="plot") from None
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, each in {"as it is": deployment, **list_variants(deployment)}.items():
        seconds = [1e3 * each.cost_pass(1, rows, context + rows).seconds for rows in PLOTTED]
        axes.plot(PLOTTED, seconds, label=name, linewidth=2.5 if name == "as it is" else 1.0)
    axes.set(xscale="log", yscale="log", xlabel="rows of a pass", ylabel=f"ms, behind {context:,} tokens")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(file, dpi=90)
    except (OSError, ValueError) as error:
        raise BadRequest(f"--plot cannot write {file}: {error}", field="plot") from error
    finally:
        plt.close(figure)
