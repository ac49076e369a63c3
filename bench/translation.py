"""BLEU and chrF of fully trained translation models: the Transformer, its variants, and RNNs.

    segue prepare-pairs --train train.en train.de --valid val.en val.de --lower -o data/en-de
    make translation DATA=data/en-de TEST="test.en test.de"                        # half an hour each on 2 cores
    make translation DATA=data/en-de TEST="test.en test.de" MORE="--only rnn"

An existing run is resumed, or only evaluated if it is finished. Each is evaluated in four ways: with the checkpoint of
the best validation loss or the mean of the last five, by greedy or beam search. The validation split decides which of
them counts for the test split.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import segue
from machine import THREADS, environment
from segue.checkpoint import Translator, average
from segue.infer.judge import bleu, chrf, split_nats, split_texts
from segue.infer.translate import translate
from segue.recipe import recipe_of, with_changes
from segue.text.pairs import open_pairs
from segue.text.sources import open_any
from segue.training.run import read_log

RESULTS = Path(__file__).parents[1] / "docs/results"
WAYS = {
    "transformer": ("multi30k-cpu", ()),
    "sinusoidal": ("multi30k-cpu", ("model.encoding=sinusoidal",)),
    "post-norm": ("multi30k-cpu", ("model.norm=post",)),
    "rnn-attention": ("multi30k-rnn-attention", ()),
    "rnn": ("multi30k-rnn", ()),
}
LAST = 5
CHECKPOINTS = ("train.save_every=50", f"train.keep={LAST}")
"""Settings that keep several checkpoints, to average them."""


def trained(name: str, data: Path, runs: Path, more: Sequence[str]) -> Path:
    preset, changes = WAYS[name]
    run = runs / name
    if run.exists():
        return segue.resume(run)
    values = segue.preset(preset).recipe.model_dump(mode="json")
    recipe = recipe_of(with_changes(values, [*CHECKPOINTS, *changes, *more]))
    return segue.train(recipe, data, run, watch=lambda event: _tell(name, event))


def _tell(name: str, event: Any) -> None:
    if event.kind == "valid":
        print(f"{name}: step {event.step:,}, perplexity {event.values['perplexity']:.3f}", flush=True)


def evaluated(run: Path, data: Path, test: tuple[list[bytes], list[str]]) -> dict[str, Any]:
    """All figures of a run."""
    pairs = open_pairs(data)
    splits = {"valid": split_texts(pairs, "valid"), "test": test}
    best, mean = segue.load_translator(run), average(run, LAST)
    assert isinstance(mean, Translator)
    figures = [
        {"weights": weights, "beam": width, **_figures(translator, width, splits)}
        for weights, translator in (("best", best), (f"mean of {LAST}", mean))
        for width in (1, best.translating.beam_width)
    ]
    done = read_log(run)[-1]
    return {
        "parameters": sum(weight.numel() for weight in best.model.parameters()),
        "steps": done["step"],
        "minutes": round(done["seconds"] / 60, 1),
        "valid perplexity": round(float(torch.tensor(split_nats(best.model, pairs, "valid")).exp()), 3),
        "figures": figures,
    }


def _lines(path: Path) -> list[bytes]:
    with open_any(path) as opened:
        return [line.strip() for line in opened]


def _figures(translator: Translator, width: int, splits: dict[str, Any]) -> dict[str, Any]:
    how = translator.translating.model_copy(update={"beam_width": width})
    figures = {}
    for split, (sources, references) in splits.items():
        ours = [best[0].text for best in translate(translator, sources, translating=how)]
        for name, measure in (("BLEU", bleu), ("chrF", chrf)):
            score, signature = measure(ours, references, lower=True)
            figures |= {f"{split} {name}": round(score, 2), name: signature}
    return figures


def table(results: dict[str, Any]) -> str:
    """The JSON as a Markdown page."""
    rows = "\n".join(_rows(results["runs"]))
    some = next(iter(results["runs"].values()))["figures"][0]
    commands = "\n".join(f"    {line}" for line in results["commands"])
    return f"""# Translating Multi30k, English to German

{commands}

BLEU and chrF of test_2016_flickr (1,000 sentences), lower-cased, by sacrebleu; of the four ways to translate, the one
that was best on the validation split (best checkpoint or mean of the last {LAST}, greedy or beam). Minutes are those of
{results["machine"]}

| model | parameters | steps | minutes | validation perplexity | way | BLEU | chrF |
|---|---|---|---|---|---|---|---|
{rows}

All figures, also of the ways that were not chosen: [multi30k.json](multi30k.json). Signatures:

- BLEU `{some["BLEU"]}`
- chrF `{some["chrF"]}`

Published for a Transformer of this size (4 + 4 layers of 128, inner 256, 4 heads, joint BPE of 10,000): 41.0 BLEU on
tokenised, lower-cased text, which is not quite the same measure.
"""


def _rows(runs: dict[str, Any]) -> Iterator[str]:
    for name, run in runs.items():
        best = max(run["figures"], key=lambda figure: figure["valid BLEU"])
        what = ", ".join([run["preset"], *run["changes"]])
        way = f"{best['weights']}, " + (f"beam {best['beam']}" if best["beam"] > 1 else "greedy")
        yield (
            f"| {name} (`{what}`) | {run['parameters']:,} | {run['steps']:,} | {run['minutes']} "
            f"| {run['valid perplexity']} | {way} | **{best['test BLEU']:.1f}** | {best['test chrF']:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--test", type=Path, nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--runs", type=Path, default=Path("runs/translation"))
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="NAME")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to all recipes")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--machine", default="2 shared cores.", help="what the page says of the minutes")
    parser.add_argument("--out", type=Path, default=RESULTS / "multi30k.json")
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    sources, wanted = map(_lines, words.test)
    test = sources, [line.decode() for line in wanted]
    for name in words.only:
        run = trained(name, words.data, words.runs, words.set)
        preset, changes = WAYS[name]
        figures = {"preset": preset, "changes": list(changes), **evaluated(run, words.data, test)}
        results = json.loads(words.out.read_text()) if words.out.exists() else {"runs": {}}
        results |= {"commands": COMMANDS, "machine": words.machine, "environment": environment()}
        results["runs"] = {
            way: figures if way == name else results["runs"].get(way)
            for way in WAYS
            if way in {name, *results["runs"]}
        }
        words.out.parent.mkdir(parents=True, exist_ok=True)
        words.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        words.out.with_suffix(".md").write_text(table(results))
        print(json.dumps(figures, indent=1), flush=True)


COMMANDS = [
    "segue prepare-pairs --train train.en train.de --valid val.en val.de --lower -o data/en-de",
    'make translation DATA=data/en-de TEST="test_2016_flickr.en test_2016_flickr.de"',
]


if __name__ == "__main__":
    main()
