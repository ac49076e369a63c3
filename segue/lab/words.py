"""Words: perplexities of a Transformer-XL, a Transformer without memory and an LSTM on a corpus of words.

Each with and without a neural cache; the Transformer-XL with longer and shorter memories than in training too. Models
have equal parameters, words, steps and tuning; the published figures beside them are of a larger data set.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from segue.checkpoint import load
from segue.footprint import parameters
from segue.lab import word_models
from segue.lab.cache import cached
from segue.lab.experiment import Experiment, Results, Setting
from segue.lab.trained import Budget, trained_run
from segue.lab.tuning import Tuned, tuned
from segue.lab.word_models import (
    MODES,
    SIDES,
    Chosen,
    perplexities,
    swept,
    tuned_caches,
    untrained,
    word_recipe,
)
from segue.lab.words_page import draw, tell
from segue.text.corpus import read_header


@dataclass(frozen=True)
class Sizes:
    """The budget of training, and the words that are read."""

    budget: Budget
    memories: tuple[int, ...]  # at evaluation, for Transformer-XL
    tuned_on: int  # words of the validation split that choose a cache
    swept: int  # words that are read with each memory length
    scored: int  # words of each split at most that the models are scored on


QUICK = Sizes(Budget(32, 2, 2, 16, 32, steps=30), (0, 32, 128), tuned_on=1000, swept=1000, scored=2000)
FULL = Sizes(
    Budget(128, 3, 4, 32, 64, steps=300),
    (0, 64, 128, 256, 512, 1024),
    tuned_on=10_000,
    swept=10_000,
    scored=50_000,
)


def measure(setting: Setting) -> Results:
    size, words = QUICK if setting.quick else FULL, of_words(setting)
    header = words.corpus.header
    limits = {split: min(size.scored, header.splits[split].tokens - 1) for split in ("valid", "test")}
    tunings = {
        name: tuned(words, word_recipe(words, name, size.budget), name, divisor=3, unit="perplexity")
        for name in SIDES
    }
    runs = {
        name: [trained_run(words, tuning.seeded(seed), f"{name}, seed {seed}") for seed in words.seeds]
        for name, tuning in tunings.items()
    }
    return {
        **asdict(size),
        "source": header.source,
        "vocab": header.vocab,
        "training words": header.splits["train"].tokens,
        "limits": limits,
        "sides": {name: _side(words, size, tunings[name], runs[name], limits) for name in SIDES},
        "sweep": [_sweep(words, size, run) for run in runs["Transformer-XL"]],
    }


def of_words(setting: Setting) -> Setting:
    """The same setting on the corpus of words."""
    assert setting.words is not None
    return replace(setting, data=setting.words)


def _side(
    words: Setting, size: Sizes, tuning: Tuned, runs: Sequence[Path], limits: dict[str, int]
) -> Results:
    """What a model reaches with every seed, and what its untrained weights reach on fewer words."""
    first = runs[0].name
    caches: Chosen = {}

    def chosen() -> Chosen:
        """The caches for all seeds, tuned with the first; only if something is not in the cache of measurements."""
        if not caches:
            bundle = load(runs[0])
            caches.update(tuned_caches(words, bundle.model, bundle.reading, size.tuned_on))
        return caches

    def read(run: Path) -> Results:
        bundle = load(run)
        figures = perplexities(words, bundle.model, bundle.reading, chosen(), limits)
        return {**figures, "caches": {mode: _settings(chosen(), mode) for mode in MODES[1:]}}

    inputs = {"tuned with": first, "tuned_on": size.tuned_on, "limits": limits, "quick": words.quick}
    seeds = [
        cached(words, word_models.__name__, {"run": run.name, **inputs}, partial(read, run)) for run in runs
    ]
    control = {"untrained": first, **inputs}
    return {
        "parameters": parameters(tuning.recipe.model),
        **tuning.summary(),
        "caches": seeds[0]["caches"],
        **{split: [one[split] for one in seeds] for split in limits},
        "untrained": cached(
            words, word_models.__name__, control, lambda: untrained(words, tuning.recipe, size.tuned_on)
        ),
    }


def _settings(chosen: Chosen, mode: str) -> Results:
    names = {"weight", "flatness"} if mode == "neural cache" else {"weight"}
    return chosen[mode].model_dump(include=names)


def _sweep(words: Setting, size: Sizes, run: Path) -> Results:
    inputs = {"sweep": run.name, "memories": size.memories, "swept": size.swept}
    sweep: Results = cached(
        words, word_models.__name__, inputs, lambda: swept(words, load(run), size.memories, size.swept)
    )
    return sweep


def inputs(setting: Setting) -> Results:
    """The corpus of words, for the record."""
    header = of_words(setting).corpus.header
    return {"words": {"source": header.source, "checksums": header.checksums}}


def skipped(setting: Setting) -> str:
    """Why nothing can be measured with these words; empty if it can."""
    if setting.words is None:
        return (
            "it needs a corpus of words; prepare one with segue prepare wikitext-2 and give it with --words"
        )
    header = read_header(setting.words)
    if header.tokenizer != "words":
        return f"{setting.words} should be a corpus of words; its tokenizer is {header.tokenizer}"
    lengths = {split: held.tokens for split, held in header.splits.items()}
    short = [split for split in ("train", "valid", "test") if lengths.get(split, 0) < 2]
    return f"{setting.words} should have two words or more in its split {short[0]}" if short else ""


EXPERIMENT = Experiment(
    name="words",
    claim="Transformer-XL predicts words better than LSTMs and Transformers without memory; a neural cache helps, and "
    "so does a longer memory than in training.",
    measure=measure,
    tell=tell,
    draw=draw,
    inputs=inputs,
    skipped=skipped,
)
