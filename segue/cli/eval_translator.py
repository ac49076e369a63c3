"""`segue eval` of a translator: a split of its pairs."""

import json
from pathlib import Path

from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import InputError


def judge_translator(run: Path, data: Path | None, split: str, device: str, as_json: bool) -> None:
    """Tell perplexity, exact matches, BLEU and chrF."""
    from segue.checkpoint import load_translator
    from segue.infer.judge import judge
    from segue.text.pairs import open_pairs
    from segue.text.tokenizer import digest

    translator = load_translator(run)
    translator.model.to(device)
    pairs = open_pairs(trained_on(run, data))
    sides = ((pairs.source, translator.source), (pairs.target, translator.target))
    if any(digest(ours) != digest(theirs) for ours, theirs in sides):
        raise InputError(f"{pairs.folder} was prepared with another vocabulary than {run}")
    with Progress("sentences") as progress:
        found = judge(translator, pairs, split, report=progress.update)
    if found.cut:
        tell(
            f"warning: {found.cut:,} sources had more than {translator.translating.longest} tokens; "
            "their ends were not read"
        )
    facts = found._asdict() | {"perplexity": found.perplexity, "split": split}
    if as_json:
        echo(json.dumps(facts))
        return
    echo(f"{split}: {found.pairs:,} pairs, perplexity {found.perplexity:.3f}, {found.exact:.2%} exact")
    for name, figure in (("BLEU", found.bleu), ("chrF", found.chrf)):
        if figure is not None:
            echo(f"{name} {figure.score:.1f}  {figure.signature}")


def trained_on(run: Path, data: Path | None) -> Path:
    """The data that was given, or else the run's own."""
    from segue.checkpoint import read_json

    if data is not None:
        return data
    if not (run / "run.json").is_file():
        raise InputError(f"{run} does not say what it was trained on; say it with --data")
    told = read_json(run / "run.json").get("data")
    if not isinstance(told, str):
        raise InputError(f"{run / 'run.json'} does not say what it was trained on; say it with --data")
    return Path(told)
