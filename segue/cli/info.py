"""`segue info`: the settings, parameters and memory needs of a preset or a bundle."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue import native
from segue.cli.terminal import echo

if TYPE_CHECKING:
    from segue.config import BothSidedConfig, LayersConfig, StepsConfig
    from segue.presets import Preset
    from segue.presets.sizes import Sizes
    from segue.recipe import EncoderRecipe, Recipe, TranslationRecipe

EXAMPLE = "Example: segue info wt103-standard"


def info(
    name: Annotated[
        str | None, typer.Argument(help="A preset, or the folder of a bundle.", metavar="[PRESET|BUNDLE]")
    ] = None,
    ranks: Annotated[
        int, typer.Option(help="Estimate memory and speed of a preset on this number of ranks (processes).")
    ] = 1,
    flops: Annotated[float, typer.Option(help="Speed of a rank: TFLOP/s that its matmuls reach.")] = 100.0,
    bandwidth: Annotated[float, typer.Option(help="Network bandwidth of a rank in GB/s.")] = 12.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets, or show one preset or bundle in full.

    Memory is for float32. Training memory counts weights, gradients, Adam's moments, the Transformer-XL memory and the
    activations saved for the backward pass, at the published number of lanes; reading memory counts weights and the
    memory of one lane. With --ranks it shows what each rank would hold and send: calculated, not measured.
    """
    if name is None:
        _list_presets(as_json)
        return
    if ranks > 1:
        facts = _ranks(name, ranks, flops, bandwidth)
    else:
        facts = _bundle(Path(name)) if Path(name).exists() else _preset(name)
        facts["engine"] = native.why()
    if as_json:
        echo(json.dumps(facts, indent=2))
        return
    for key, value in _flat(facts):
        echo(f"{key:<28} {value}")


def _list_presets(as_json: bool) -> None:
    from segue.presets import PRESETS

    rows = {name: _facts(preset) for name, preset in PRESETS.items()}
    if as_json:
        echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, title="Recipes: for 2 CPU cores, and as published", title_justify="left"
    )
    table.add_column("preset", style="bold", no_wrap=True)
    for title in ("parameters", "train", "read"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("recipe")
    table.add_column("published")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['parameters']:,}",
            _size(row["training_bytes"]),
            _size(row["reading_bytes"]),
            row["summary"],
            row["published"],
        )
    Console().print(table)
    echo("\ntrain, read: memory needs in float32.  segue info PRESET shows all settings of one.")
    echo(f"engine: {native.why()}")


def _preset(name: str) -> dict[str, Any]:
    from segue.presets import preset

    chosen = preset(name)
    facts = {"preset": name, **_facts(chosen)}
    return facts | {"note": chosen.note} if chosen.note else facts


def _ranks(name: str, ranks: int, flops: float, bandwidth: float) -> dict[str, Any]:
    """The estimated memory and speed of a preset on several ranks."""
    from segue.config import XLConfig
    from segue.errors import InputError
    from segue.footprint import parameters
    from segue.presets import preset
    from segue.recipe import Recipe
    from segue.scale import Machines, rank_share
    from segue.training.checks import check_lanes_divide

    recipe = preset(name).recipe
    fits = isinstance(recipe, Recipe) and isinstance(recipe.model, XLConfig)
    if not isinstance(recipe, Recipe) or not fits or flops <= 0 or bandwidth <= 0:
        raise InputError("--ranks needs a Transformer-XL preset, and --flops and --bandwidth above 0")
    check_lanes_divide(recipe, ranks)
    facts: dict[str, Any] = {"preset": name, "parameters": parameters(recipe.model), "ranks": ranks}
    facts |= {
        "assumed": f"{flops:g} TFLOP/s and {bandwidth:g} GB/s for each rank, float32; nothing is measured"
    }
    for way, sharded in (("DDP", False), ("FSDP2", True)):
        share = rank_share(recipe, ranks, Machines(flops * 1e12, bandwidth * 1e9), sharded=sharded)
        facts[way] = {
            "lanes": share.lanes,
            "total_bytes": share.total_bytes,
            "state_bytes": share.state_bytes,
            "passing_bytes": share.passing_bytes,
            "carried_bytes": share.carried_bytes,
            "step_bytes": share.step_bytes,
            "sent in a step": _size(share.sent_in_a_step),
            "computing": f"{share.seconds_computing:.3g} s",
            "sending": f"{share.seconds_sending:.3g} s",
            "efficiency": f"{share.least_efficiency:.0%} to {share.most_efficiency:.0%}",
        }
    return facts


def _bundle(path: Path) -> dict[str, Any]:
    from segue.checkpoint import load, load_encoder_bundle, load_translator, task_of
    from segue.footprint import reading_bytes

    task = task_of(path)
    if task == "encoding":
        encoder = load_encoder_bundle(path)
        head = encoder.model.task
        return {
            "encoder": str(path),
            "parameters": sum(weight.numel() for weight in encoder.model.parameters()),
            "tokenizer": f"{encoder.tokenizer.size:,} symbols",
            "head": None if head is None else head.model_dump(mode="json"),
            "model": encoder.model.config.model_dump(mode="json"),
            "reading": encoder.reading.model_dump(mode="json"),
        }
    if task == "translation":
        translator = load_translator(path)
        return {
            "translator": str(path),
            "parameters": sum(weight.numel() for weight in translator.model.parameters()),
            "source": f"{translator.source.size:,} symbols",
            "target": f"{translator.target.size:,} symbols",
            "model": translator.model.config.model_dump(mode="json"),
            "translating": translator.translating.model_dump(mode="json"),
        }
    bundle = load(path)
    weights = list(bundle.model.parameters())
    return {
        "bundle": str(path),
        "parameters": sum(weight.numel() for weight in weights),
        "precision": str(weights[0].dtype).removeprefix("torch."),
        "reading_bytes": reading_bytes(bundle.model.config, bundle.reading),
        "tokenizer": "none" if bundle.tokenizer is None else f"{bundle.tokenizer.size:,} symbols",
        "model": bundle.model.config.model_dump(mode="json"),
        "reading": bundle.reading.model_dump(mode="json"),
    }


def _facts(preset: "Preset") -> dict[str, Any]:
    from segue.recipe import EncoderRecipe, Recipe

    recipe = preset.recipe
    weights, training, reading = _sizes(recipe)
    facts = {"parameters": weights, "data": preset.data, "published": preset.published}
    if isinstance(recipe, Recipe):
        facts |= _language_facts(recipe, weights)
    else:
        about = _encoder_summary(recipe) if isinstance(recipe, EncoderRecipe) else _pair_summary(recipe)
        facts |= {
            "summary": f"{about}, {_short(recipe.train.steps)} steps",
        }
    facts |= {"training_bytes": training, "reading_bytes": reading}
    return facts | recipe.model_dump(mode="json")


def _sizes(recipe: "Recipe | TranslationRecipe | EncoderRecipe") -> "Sizes":
    """What the recipe's model weighs: as recorded, or calculated, which needs torch."""
    from segue.presets.sizes import known_sizes

    if (known := known_sizes(recipe)) is not None:
        return known
    from segue.footprint import sizes

    return sizes(recipe)


def _language_facts(recipe: "Recipe", weights: int) -> dict[str, Any]:
    from segue.config import ConvolutionalConfig, RecurrentConfig, StepsConfig

    train = recipe.train
    lengths = (
        f"T=M {train.segment}" if train.segment == train.memory else f"T {train.segment}, M {train.memory}"
    )
    if isinstance(recipe.model, RecurrentConfig):
        shape = f"{recipe.model.layers}×{recipe.model.width} {recipe.model.cell}"
    elif isinstance(recipe.model, StepsConfig):
        shape = f"{_steps(recipe.model)}×{_heads(recipe.model)}"
    elif isinstance(recipe.model, ConvolutionalConfig):
        widest = max(layer.width for layer in recipe.model.layers)
        shape = f"{len(recipe.model.layers)}×{widest} {recipe.model.gate}"
        shape += "" if recipe.model.gate == "qrnn" else f", field {recipe.model.receptive_field}"
    else:
        shape = f"{recipe.model.layers}×{_heads(recipe.model)}{_sparsity(recipe.model)}"
    lengths += f", span {train.span}" if train.span else ""
    facts: dict[str, Any] = {}
    if recipe.head_parameters:
        facts |= {"parameters in training": weights + recipe.head_parameters}
    return facts | {
        "summary": f"{shape}, B {train.lanes}, {lengths}, {_short(train.steps)} steps",
    }


def _pair_summary(recipe: "TranslationRecipe") -> str:
    from segue.config import RecurrentSeq2SeqConfig, StepsConfig

    model = recipe.model
    if isinstance(model, RecurrentSeq2SeqConfig):
        layers = f"{model.layers}+{model.layers}×{model.width} {model.cell}"
    elif isinstance(model, StepsConfig):
        layers = f"{_steps(model)}×{_heads(model)}"
    else:
        layers = f"{model.encoder_layers}+{model.decoder_layers}×{_heads(model)}{_cheaper(model)}"
    return f"{layers}, {recipe.train.tokens:,} tokens"


def _encoder_summary(recipe: "EncoderRecipe") -> str:
    shape = f"{recipe.model.layers}×{_heads(recipe.model)}{_cheaper(recipe.model)}"
    return f"{shape}, {recipe.train.batch} texts of {recipe.reading.max_length}"


def _heads(shape: "LayersConfig") -> str:
    return f"{shape.width}, {shape.heads}×{shape.head_width}"


def _steps(shape: "StepsConfig") -> str:
    return f"{'at most ' if shape.halts else ''}{shape.steps} steps"


def _cheaper(shape: "BothSidedConfig") -> str:
    """What an encoder attends to, if not to everything."""
    if shape.attention != "full":
        return f", {shape.attention} {shape.rank}"
    more = f" + {shape.global_tokens}" if shape.global_tokens else ""
    return f", window {shape.window}{more}" if shape.window else ""


def _sparsity(shape: "LayersConfig") -> str:
    """The pattern of sparse attention, where there is one."""
    from segue.config import XLConfig

    if not isinstance(shape, XLConfig) or shape.pattern == "full":
        return ""
    return f" {shape.pattern} {shape.stride}{f'/{shape.summary}' if shape.summary else ''}"


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            lines += _flat(value, f"{name}.")
        elif key.endswith("_bytes"):
            lines.append((name.removesuffix("_bytes") + " memory", _size(value)))
        else:
            lines.append((name, _text(value)))
    return lines


def _text(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 1_000_000 else f"{count / 1e3:g}k"


def _size(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
