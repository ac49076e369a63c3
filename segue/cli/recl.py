"""`segue recl`: how much context each model of a group makes use of."""

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
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN …", help="The group: runs or bundles.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A corpus; by default the first run's own.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of it.")] = "test",
    step: Annotated[int, typer.Option(help="By how much context grows, from as much on.")] = 100,
    longest: Annotated[int, typer.Option(help="Context that is tried at most.")] = 1000,
    positions: Annotated[int, typer.Option(help="Tokens of the text that are predicted.")] = 2000,
    memory: Annotated[
        int | None, typer.Option(help="States remembered by models that have a memory; else as each reads.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
    seed: Annotated[int, typer.Option(help="Of the choice of positions.")] = 0,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Relative effective context length (RECL) of every model, measured against the best of the group.

    A longer context counts as long as it lowers perplexity by 1 % where even the best model finds it hard: at the
    hardest 10 %, 50 % or all of the positions. A model that is read without memory sees one segment at most.
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
            bundle.reading.changed(memory=memory if bundle.reading.reach.memory else None),
        )
        for name, bundle in bundles.items()
    }
    stream = corpus_of(runs[0], data, bundles[str(runs[0])]).stream(split)
    with Progress("positions") as progress:
        found = relative_lengths(group, stream, plan, progress.update)
    echo(json.dumps(_facts(found, plan)) if as_json else _said(found, plan))


def _check_comparable(runs: list[Path], bundles: "dict[str, Bundle]") -> None:
    """The loss of a token means the same to all."""
    from segue.text.tokenizer import digest

    if len(bundles) < len(runs):
        raise InputError("a run is given twice; a group wants each model once")
    first, *others = bundles.items()
    for name, bundle in others:
        known = [one.tokenizer and digest(one.tokenizer) for one in (first[1], bundle)]
        if known[0] != known[1] or bundle.model.config.vocab != first[1].model.config.vocab:
            raise InputError(
                f"{first[0]} and {name} have different tokenizers, so their losses are of different tokens; "
                "train the group on one corpus"
            )


def _facts(found: "Lengths", plan: "Plan") -> dict[str, Any]:
    return {
        "shares": list(plan.shares),
        "lengths": {name: list(lengths) for name, lengths in found.lengths.items()},
        "at_least": list(found.unbounded),
        "nats_by_context": found.curves,
        "positions": found.positions,
        "step": plan.step,
        "longest": plan.longest,
        "seed": plan.seed,
    }


def _said(found: "Lengths", plan: "Plan") -> str:
    wide = max(map(len, found.lengths))
    lines = [" " * wide + "".join(f"{f'r = {share:g}':>10}" for share in plan.shares)]
    for name, lengths in found.lengths.items():
        more = "≥ " if name in found.unbounded else ""
        lines.append(f"{name:<{wide}}" + "".join(f"{f'{more}{length:,}':>10}" for length in lengths))
    lines.append(
        f"{found.positions:,} positions; contexts in steps of {plan.step:,}, {plan.longest:,} at most"
    )
    return "\n".join(lines)
