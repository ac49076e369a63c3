"""`segue eval`: the loss of a model on a split: bits per byte, perplexity."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from segue.cli.eval_encoder import evaluate_encoder
from segue.cli.eval_facts import facts_of, settings_of, text_of
from segue.cli.eval_translator import Metric, data_of, evaluate_translator
from segue.cli.machine import Device, Int8, KVPrecision, Threads, placed, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import InputError
from segue.progress import Report, silent

if TYPE_CHECKING:
    from segue.checkpoint import Bundle
    from segue.config import Reading
    from segue.distributed import Ranks
    from segue.infer.adapt import Cache, Dynamic
    from segue.infer.evaluate import Score
    from segue.infer.invariant import Invariant
    from segue.infer.ngram_mixture import Mixture
    from segue.kinds import TaskKind
    from segue.nn.engine import Engine
    from segue.nn.language import LanguageModel
    from segue.text.corpus import Corpus

    Mode = Literal["sliding"] | int | Dynamic | Cache | Mixture | Invariant
    """A sliding window, a number of lanes with memory, an adaptation, or lanes that do not show in the result."""

LANGUAGE_ONLY = (
    *("segment", "memory", "clamp", "span", "pinned", "sliding", "dynamic", "learning_rate", "decay"),
    *("cache", "cache_weight", "cache_flatness", "ngrams", "lanes", "invariant", "int8", "kv_cache"),
)
"""The options on how a language model reads. Nothing else reads so."""

NEEDED = {
    **dict.fromkeys(("learning_rate", "decay"), "dynamic"),
    **dict.fromkeys(("cache_weight", "cache_flatness"), "cache"),
}
"""Options that have an effect with another one only."""

WITHOUT_SLIDING = ("memory", "pinned")
"""Options without an effect on a sliding window, which is read from an empty memory."""

EXAMPLE = "Example: segue eval runs/demo --split test --segment 128 --memory 1600 --clamp 1000"


def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A corpus; by default that of the run's training.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split to score: train, valid or test.")] = "test",
    segment: Annotated[int | None, typer.Option(help="Segment length in tokens.")] = None,
    memory: Annotated[
        int | None, typer.Option(help="Memory length; 0 for isolated segments. It removes the recipe's span.")
    ] = None,
    clamp: Annotated[
        int | None, typer.Option(help="Clamp length: the largest distinct distance; 0 for no clamp.")
    ] = None,
    span: Annotated[
        int | None, typer.Option(help="Attention span: keys per token, itself included; 0 for all.")
    ] = None,
    pinned: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**20, help="Pinned rows: tokens at the start of a document that stay in sight."
        ),
    ] = None,
    sliding: Annotated[
        bool,
        typer.Option("--sliding", help="Sliding window: read --segment tokens again for every token."),
    ] = False,
    dynamic: Annotated[
        bool,
        typer.Option("--dynamic", help="Dynamic evaluation: a gradient step after every scored segment."),
    ] = False,
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate of dynamic evaluation; 0 is static.")
    ] = 1e-4,
    decay: Annotated[
        float, typer.Option(help="Decay of dynamic evaluation towards the trained weights.")
    ] = 1e-3,
    cache: Annotated[int, typer.Option(help="Neural cache: its size in hidden states; 0 for none.")] = 0,
    cache_weight: Annotated[float, typer.Option(help="Share of the cache in the probabilities.")] = 0.1,
    cache_flatness: Annotated[
        float, typer.Option(help="Flatness θ of the cache: scales the dot products in its softmax.")
    ] = 0.3,
    ngrams: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Mix in the training split's n-grams up to this order; 0 for none. Try 6 with BPE.",
        ),
    ] = 0,
    lanes: Annotated[
        int,
        typer.Option(min=1, help="Parts of the split that are read in parallel; the score stays the same."),
    ] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Score at most this many tokens, from the beginning.")
    ] = None,
    metric: Annotated[
        Metric | None,
        typer.Option(
            help="For an encoder-decoder: bleu (BLEU and chrF; the default), or rouge (ROUGE-1, -2, -L)."
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For an encoder with labels: the confusion matrix as .png or .svg."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant",
            help="The same result to the last bit whatever the threads, lanes and cuts; a little slower.",
        ),
    ] = False,
    int8: Int8 = False,
    kv_cache: KVPrecision = "exact",
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Evaluate a model on a split: bits per byte and perplexity, BLEU of a translator, an encoder's accuracy.

    Every token but the first is scored once. Segment, memory, clamp and span may differ from training. With several
    lanes, each first reads, unscored, what can influence its part, so the score stays the same. Under torchrun every
    rank reads --lanes lanes. A translation model gets perplexity, exact matches, BLEU and chrF, or ROUGE; a masked
    language model perplexity and accuracy of masked tokens; a fine-tuned encoder the figures of its task. The options
    on how to read are for language models only.
    """
    from segue.checkpoint import load, task_of
    from segue.distributed import process_group
    from segue.infer.adapt import Cache, Dynamic
    from segue.infer.invariant import Invariant
    from segue.infer.ngram_mixture import Mixture
    from segue.launch import local_device

    task, rounded = task_of(run), int8 or kv_cache != "exact"
    _check_options(context, run, task, metric, picture, trained_and_rounded=dynamic and rounded)
    if task != "language":
        use(threads, device)
        _evaluate_other(task, run, data, split, limit, device, metric, as_json, picture)
        return
    ways = {"sliding": sliding, "dynamic": dynamic, "cache": cache > 0, "ngrams": ngrams > 0}
    mode: Mode = "sliding" if sliding else Invariant(lanes) if invariant else lanes
    if dynamic:
        mode = Dynamic(learning_rate=learning_rate, decay=decay)
    elif cache:
        mode = Cache(size=cache, weight=cache_weight, flatness=cache_flatness)
    elif ngrams:
        mode = Mixture(order=ngrams, lanes=lanes)
    with process_group() as ranks, Progress("tokens") as progress:

        def opened() -> "tuple[Bundle, Corpus]":
            use(threads, local_device(device))
            _check_modes(ranks.world_size, ways, lanes)
            _check_invariant(invariant, ranks.world_size, any(ways.values()) or rounded)
            bundle = placed(load(run), local_device(device))
            return bundle, corpus_of(run, data, bundle)

        bundle, corpus = ranks.on_every_rank(opened)
        model = bundle.model.frozen(int8=int8, kv_cache=kv_cache) if rounded else bundle.model
        reading = _reading(bundle, segment, memory, clamp, span, pinned)
        begin = time.monotonic()
        score = _scored(model, corpus, split, reading, mode, limit, progress.update, ranks)
        if not ranks.first:
            return
    facts = facts_of(score, ways, reading) | settings_of(mode, int8, kv_cache)
    facts |= {"split": split, "seconds": time.monotonic() - begin}
    if ranks.world_size > 1:
        facts |= {"ranks": ranks.world_size, "overlap": model.looks_back(reading)}
    echo(json.dumps(facts) if as_json else text_of(facts))


def _evaluate_other(
    task: "TaskKind",
    run: Path,
    data: Path | None,
    split: str,
    limit: int | None,
    device: str,
    metric: Metric | None,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Evaluate what is no language model."""
    if task == "encoding":
        evaluate_encoder(run, data, split, limit, device, as_json, picture)
    else:
        evaluate_translator(run, data, split, device, metric or "bleu", as_json)


def _check_options(
    context: typer.Context,
    run: Path,
    task: "TaskKind",
    metric: Metric | None,
    picture: Path | None,
    *,
    trained_and_rounded: bool,
) -> None:
    if trained_and_rounded:
        raise InputError("--dynamic trains the weights; it does not go with --int8 or --kv-cache")
    if metric is not None and task != "translation":
        raise InputError(f"--metric {metric} compares texts of an encoder-decoder, and {run} is none")
    if picture is not None and task != "encoding":
        raise InputError(f"--picture draws the confusion matrix of an encoder's labels, and {run} is none")
    ignored = {"language": (), "translation": (*LANGUAGE_ONLY, "limit"), "encoding": LANGUAGE_ONLY}
    _check_ignored(context, run, ignored[task])


def _check_ignored(context: typer.Context, run: Path, names: Iterable[str]) -> None:
    """Refuse an option that was given and would be ignored."""
    for name in names:
        if _given(context, name):
            raise InputError(f"{_option(name)} does not apply: {run} is no language model")
    for name, needed in NEEDED.items():
        if _given(context, name) and not context.params[needed]:
            raise InputError(f"{_option(name)} has no effect without {_option(needed)}")
    for name in WITHOUT_SLIDING:
        if _given(context, name) and context.params["sliding"]:
            raise InputError(f"{_option(name)} has no effect with --sliding")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"  # by name: typer may have a click of its own


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _reading(bundle: "Bundle", *changes: int | None) -> "Reading":
    """The bundle's reading with another segment, memory, clamp, span and pinned rows."""
    names = ("segment", "memory", "clamp", "span", "pinned")
    return bundle.reading.changed(**dict(zip(names, changes, strict=True)))


def _check_invariant(wanted: bool, ranks: int, otherwise: bool) -> None:
    if wanted and otherwise:
        raise InputError(
            "--invariant does not go with --sliding, --dynamic, --cache, --ngrams, --int8 or --kv-cache; choose one"
        )
    if wanted and ranks > 1:
        raise InputError("--invariant runs in one process only, not under torchrun")


def _check_modes(ranks: int, ways: dict[str, bool], lanes: int) -> None:
    if sum(ways.values()) + (lanes > 1 and not ways["ngrams"]) > 1:
        raise InputError(
            "--sliding, --dynamic, --cache and --ngrams exclude each other; choose one (of them, --lanes goes with "
            "--ngrams alone)"
        )
    if ranks > 1 and any(ways.values()):
        raise InputError(
            "--sliding, --dynamic, --cache and --ngrams run in one process only, not under torchrun"
        )


def _scored(
    model: "LanguageModel | Engine[Any]",
    corpus: "Corpus",
    split: str,
    reading: "Reading",
    mode: "Mode",
    limit: int | None,
    report: Report,
    ranks: "Ranks",
) -> "Score":
    """The score of the split in one of the modes."""
    from segue.infer import adapt
    from segue.infer.evaluate import evaluate as evaluate_stream
    from segue.infer.evaluate import evaluate_sliding, targets_of
    from segue.infer.invariant import Invariant, evaluate_invariant
    from segue.infer.ngram_mixture import Mixture, evaluate_mixed
    from segue.nn.language import LanguageModel

    stream = corpus.stream(split)
    if mode == "sliding":
        return evaluate_sliding(model, stream, reading, limit=limit, report=report)
    if isinstance(mode, adapt.Dynamic):
        assert isinstance(model, LanguageModel), "dynamic evaluation trains the weights"
        targets_of(stream, limit)  # a split that is too short is refused before gradients are gathered
        training = corpus.stream("train")
        squares = (
            adapt.mean_squares(model, training, reading, mode.gather, report) if mode.learning_rate else {}
        )
        return adapt.evaluate_dynamic(model, stream, reading, squares, mode, limit=limit, report=report)
    if isinstance(mode, adapt.Cache):
        return adapt.evaluate_cached(model, stream, reading, mode, limit=limit, report=report)
    if isinstance(mode, Mixture):
        return evaluate_mixed(model, corpus, split, reading, mode, limit=limit, report=report)
    if isinstance(mode, Invariant):
        return evaluate_invariant(model, stream, reading, mode, limit=limit, report=report)
    assert isinstance(mode, int)
    progress = report if ranks.first else silent
    return evaluate_stream(model, stream, reading, lanes=mode, limit=limit, report=progress, ranks=ranks)


def corpus_of(run: Path, data: Path | None, bundle: "Bundle") -> "Corpus":
    """The given corpus, or the one that the run was trained on; it must have the run's tokenizer."""
    from segue.checkpoint import read_json
    from segue.text.corpus import open_corpus
    from segue.text.tokenizer import digest

    corpus = open_corpus(data_of(run, data))
    if data is None and read_json(run / "run.json").get("checksums") not in (None, corpus.header.checksums):
        tell(f"note: {corpus.folder} has changed since {run} was trained on it")
    fits = corpus.header.vocab == bundle.model.config.vocab
    if not fits or (bundle.tokenizer is not None and digest(bundle.tokenizer) != digest(corpus.tokenizer)):
        raise InputError(
            f"{corpus.folder} was prepared with another tokenizer than that of {run}; prepare it with the run's"
        )
    return corpus
