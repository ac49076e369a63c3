"""`segue eval` for translation models: perplexity, exact matches, and BLEU and chrF or ROUGE on a split of pairs."""

import json
from pathlib import Path
from typing import Literal

from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import InputError

Metric = Literal["bleu", "rouge"]
"""As in infer/judge.py, which imports torch."""


def evaluate_translator(
    run: Path, data: Path | None, split: str, device: str, metric: Metric, as_json: bool
) -> None:
    """Print perplexity, exact matches, and the figures of the metric."""
    from segue.checkpoint import load_translator
    from segue.infer.judge import judge
    from segue.text.pairs import open_pairs
    from segue.text.tokenizer import digest

    translator = load_translator(run)
    translator.model.to(device)
    pairs = open_pairs(data_of(run, data))
    sides = ((pairs.source, translator.source), (pairs.target, translator.target))
    if any(digest(ours) != digest(theirs) for ours, theirs in sides):
        raise InputError(f"{pairs.folder} was prepared with another vocabulary than that of {run}")
    with Progress("sentences") as progress:
        scores = judge(translator, pairs, split, metric=metric, report=progress.update)
    if scores.cut:
        tell(
            f"warning: {scores.cut:,} sources had more than {translator.translating.longest} tokens "
            "and were truncated"
        )
    if as_json:
        facts = scores._asdict() | {"perplexity": scores.perplexity, "split": split}
        figures = {name.lower(): figure for name, figure in facts.pop("figures").items()}
        echo(json.dumps(facts | figures))
        return
    echo(f"{split}: {scores.pairs:,} pairs, perplexity {scores.perplexity:.3f}, {scores.exact:.2%} exact")
    if scores.source_steps is not None:
        echo(
            f"{scores.source_steps:.2f} steps per token of the source, {scores.target_steps:.2f} of the target"
        )
    for name, figure in scores.figures.items():
        if figure is not None:
            echo(f"{name} {figure.score:.1f}  {figure.signature}")


def data_of(run: Path, data: Path | None) -> Path:
    """The given data, or else the data that the run was trained on."""
    from segue.checkpoint import read_json

    if data is not None:
        return data
    if not (run / "run.json").is_file():
        raise InputError(f"{run} does not say what it was trained on; use --data")
    folder = read_json(run / "run.json").get("data")
    if not isinstance(folder, str):
        raise InputError(f"{run / 'run.json'} does not say what it was trained on; use --data")
    if not Path(folder).is_dir():
        raise InputError(f"{run} was trained on {folder}, which is not there any more; use --data")
    return Path(folder)
