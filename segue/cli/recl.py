"""`segue recl`: relative effective context length (RECL) of a group of models."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from segue.cli.eval import corpus_of
from segue.cli.machine import Device, Threads, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.checkpoint import Bundle
    from segue.infer.recl import Lengths, Plan

EXAMPLE = "Example: segue recl runs/xl runs/vanilla runs/lstm --step 50 --longest 600"


def recl(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN …", help="The models to compare: runs or bundles.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A corpus; by default that of the first run's training."),
    ] = None,
    split: Annotated[str, typer.Option(help="The split to score.")] = "test",
    step: Annotated[
        int, typer.Option(help="The shortest context length, and the step by which it grows.")
    ] = 100,
    longest: Annotated[int, typer.Option(help="The longest context length.")] = 1000,
    positions: Annotated[int, typer.Option(help="The number of positions that are predicted.")] = 2000,
    memory: Annotated[
        int | None, typer.Option(help="Memory length of models with a memory; by default each bundle's.")
    ] = None,
    clamp: Annotated[
        int | None,
        typer.Option(help="Largest distance of models with relative positions; 0 removes a clamp."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed for the choice of positions.")] = 0,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Measure the relative effective context length (RECL) of each model in a group.

    A longer context counts while it lowers perplexity by at least 1 % at the positions that are hardest for the best
    model of the group: the hardest 10 %, 50 % or all of them. A model without memory sees at most one segment.
    """
    use(threads, device)
    from segue.checkpoint import load
    from segue.infer.recl import Member, Plan, relative_lengths

    plan = Plan(step=step, longest=longest, positions=positions, seed=seed)
    bundles = {str(run): load(run) for run in runs}
    _check_comparable(runs, bundles)
    group = {
        name: Member(
            bundle.model.to(device),
            bundle.reading.changed(
                memory=memory if bundle.reading.reach.memory else None,
                clamp=clamp if _knows_distances(bundle) else None,
            ),
        )
        for name, bundle in bundles.items()
    }
    stream = corpus_of(runs[0], data, bundles[str(runs[0])]).stream(split)
    with Progress("positions") as progress:
        lengths = relative_lengths(group, stream, plan, progress.update)
    echo(json.dumps(_facts(lengths, plan)) if as_json else _text(lengths, plan))


def _knows_distances(bundle: "Bundle") -> bool:
    """Whether a clamp has an effect on the model; a group may hold others too."""
    encoding = getattr(bundle.model.config, "position_encoding", None)
    return encoding is not None and encoding.relative


def _check_comparable(runs: list[Path], bundles: "dict[str, Bundle]") -> None:
    """Raise an error unless all models have one tokenizer: else their losses cannot be compared."""
    from segue.text.tokenizer import digest

    if len(bundles) < len(runs):
        raise InputError("a run is given twice; name each model once")
    first, *others = bundles.items()
    for name, bundle in others:
        digests = [one.tokenizer and digest(one.tokenizer) for one in (first[1], bundle)]
        if digests[0] != digests[1] or bundle.model.config.vocab != first[1].model.config.vocab:
            raise InputError(
                f"{first[0]} and {name} have different tokenizers, so their losses cannot be compared; "
                "train the group on one corpus"
            )


def _facts(measured: "Lengths", plan: "Plan") -> dict[str, Any]:
    return {
        "shares": list(plan.shares),
        "lengths": {name: list(lengths) for name, lengths in measured.lengths.items()},
        "at_least": list(measured.unbounded),
        "nats_by_context": measured.curves,
        "positions": measured.positions,
        "step": plan.step,
        "longest": plan.contexts[-1],
        "seed": plan.seed,
    }


def _text(measured: "Lengths", plan: "Plan") -> str:
    width = max(map(len, measured.lengths))
    lines = [" " * width + "".join(f"{f'r = {share:g}':>10}" for share in plan.shares)]
    for name, lengths in measured.lengths.items():
        more = "≥ " if name in measured.unbounded else ""
        lines.append(f"{name:<{width}}" + "".join(f"{f'{more}{length:,}':>10}" for length in lengths))
    lines.append(
        f"{measured.positions:,} positions; context lengths in steps of {plan.step:,}, at most {plan.contexts[-1]:,}"
    )
    return "\n".join(lines)
