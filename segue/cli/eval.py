"""`segue eval`: how well a model predicts a split."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from segue.cli.eval_translator import judge_translator, trained_on
from segue.cli.machine import Device, Int8, Threads, placed, use
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.errors import InputError
from segue.progress import Report, silent

if TYPE_CHECKING:
    from segue.checkpoint import Bundle
    from segue.config import Reading
    from segue.distributed import Ranks
    from segue.infer.adapt import Cache, Dynamic
    from segue.infer.evaluate import Score
    from segue.nn.engine import Engine
    from segue.nn.language import LanguageModel
    from segue.text.corpus import Corpus

    Way = Literal["sliding"] | int | Dynamic | Cache

EXAMPLE = "Example: segue eval runs/demo --split test --segment 128 --memory 1600 --clamp 1000"


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run or a bundle.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A corpus; by default the run's own.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of it.")] = "test",
    segment: Annotated[int | None, typer.Option(help="Tokens read at once.")] = None,
    memory: Annotated[int | None, typer.Option(help="States remembered; 0 for isolated segments.")] = None,
    clamp: Annotated[int | None, typer.Option(help="Farthest distance told apart; 0 for no clamp.")] = None,
    span: Annotated[
        int | None, typer.Option(help="Keys that a token sees, itself included; 0 for all.")
    ] = None,
    sliding: Annotated[
        bool, typer.Option("--sliding", help="The vanilla way: read --segment tokens anew for every token.")
    ] = False,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Dynamic evaluation: the weights follow the text as it is read.")
    ] = False,
    learning_rate: Annotated[float, typer.Option(help="Of dynamic evaluation; 0 is static.")] = 1e-4,
    decay: Annotated[float, typer.Option(help="Of dynamic evaluation, back to the trained weights.")] = 1e-3,
    cache: Annotated[int, typer.Option(help="Neural cache: states remembered; 0 for none.")] = 0,
    cache_weight: Annotated[float, typer.Option(help="How much the cache says.")] = 0.1,
    cache_flatness: Annotated[float, typer.Option(help="How much likeness counts in it.")] = 0.3,
    lanes: Annotated[int, typer.Option(help="Parts read side by side; the score stays the same.")] = 1,
    limit: Annotated[int | None, typer.Option(help="Score only so many tokens, from the beginning.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
    int8: Int8 = False,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Score every token of a split but its first, once.

    Any segment, memory, clamp and span will do, whatever the training used. One lane is the reference; more lanes
    first read what lies before their part, as far as they can see back, so they score the same. Under torchrun every
    rank reads so many lanes. Of a translator it tells perplexity, exact matches, BLEU and chrF: how to read is not for
    it.
    """
    from segue.checkpoint import load, translates
    from segue.distributed import process_group
    from segue.infer.adapt import Cache, Dynamic
    from segue.launch import local_device

    if dynamic and int8:
        raise InputError("--dynamic lets the weights move, and --int8 rounds them; choose one")
    if translates(run):
        use(threads, device)
        judge_translator(run, data, split, device, as_json)
        return
    way: Way = "sliding" if sliding else lanes
    if dynamic:
        way = Dynamic(learning_rate=learning_rate, decay=decay)
    elif cache:
        way = Cache(size=cache, weight=cache_weight, flatness=cache_flatness)
    with process_group() as ranks, Progress("tokens") as progress:

        def opened() -> "tuple[Bundle, Corpus]":
            use(threads, local_device(device))
            _check_ways(ranks.world_size, sliding, dynamic, cache > 0, lanes > 1)
            bundle = placed(load(run), local_device(device))
            return bundle, corpus_of(run, data, bundle)

        bundle, corpus = ranks.on_every_rank(opened)
        model = bundle.model.frozen(int8=True) if int8 else bundle.model
        reading = bundle.reading.changed(segment=segment, memory=memory, clamp=clamp, span=span)
        begin = time.monotonic()
        score = _scored(model, corpus, split, reading, way, limit, progress.update, ranks)
        if not ranks.first:
            return
    name = "sliding" if sliding else "dynamic" if dynamic else "cache" if cache else "memory"
    facts = _facts(score, name, reading) | {"split": split, "seconds": time.monotonic() - begin}
    if ranks.world_size > 1:
        facts |= {"ranks": ranks.world_size, "overlap": model.looks_back(reading)}
    echo(json.dumps(facts) if as_json else _said(facts))


def _check_ways(ranks: int, *chosen: bool) -> None:
    if sum(chosen) > 1:
        raise InputError("--sliding, --dynamic, --cache and --lanes are ways to read; choose one")
    if ranks > 1 and any(chosen[:3]):
        raise InputError("--sliding, --dynamic and --cache read the stream in order; use one process")


def _scored(
    model: "LanguageModel | Engine[Any]",
    corpus: "Corpus",
    split: str,
    reading: "Reading",
    way: "Way",
    limit: int | None,
    report: Report,
    ranks: "Ranks",
) -> "Score":
    """Read the split in one of the ways that there are."""
    from segue.infer import adapt
    from segue.infer.evaluate import evaluate as evaluate_stream
    from segue.infer.evaluate import evaluate_sliding
    from segue.nn.language import LanguageModel

    stream = corpus.stream(split)
    if way == "sliding":
        return evaluate_sliding(model, stream, reading, limit=limit, report=report)
    if isinstance(way, adapt.Dynamic):
        assert isinstance(model, LanguageModel), "its weights move"
        training = corpus.stream("train")
        squares = (
            adapt.mean_squares(model, training, reading, way.gather, report) if way.learning_rate else {}
        )
        return adapt.evaluate_dynamic(model, stream, reading, squares, way, limit=limit, report=report)
    if isinstance(way, adapt.Cache):
        return adapt.evaluate_cached(model, stream, reading, way, limit=limit, report=report)
    assert isinstance(way, int)
    told = report if ranks.first else silent
    return evaluate_stream(model, stream, reading, lanes=way, limit=limit, report=told, ranks=ranks)


def _facts(score: "Score", way: str, reading: "Reading") -> dict[str, Any]:
    return {
        "bits_per_byte": None if score.bytes is None else score.bits_per_byte,
        "bits_per_token": score.bits_per_token,
        "nats_per_token": score.nats / score.tokens,
        "perplexity": score.perplexity,
        "word_perplexity": score.word_perplexity,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "way": way,
        "segment": reading.segment,
        **reading.reach.model_dump(mode="json"),
    }


def _said(facts: dict[str, Any]) -> str:
    lossless = facts["bits_per_byte"] is not None
    bits = f"{facts['bits_per_byte']:.4f} bits per byte, " if lossless else ""
    size = f", {facts['bytes']:,} bytes" if lossless else ""
    words = f", per word {facts['word_perplexity']:.2f}" if facts["word_perplexity"] else ""
    ranks = f"; {facts['ranks']} ranks, {facts['overlap']:,} tokens read first" if "ranks" in facts else ""
    reach = f"memory {facts['memory']}, clamp {facts['clamp'] or 'none'}, span {facts['span'] or 'none'}"
    return (
        f"{facts['split']}: {bits}{facts['bits_per_token']:.4f} bits per token, "
        f"perplexity {facts['perplexity']:.3f}{words}\n"
        f"{facts['tokens']:,} tokens{size} scored in {facts['seconds']:.1f} s; "
        f"{facts['way']}, segment {facts['segment']}, {reach}{ranks}"
    )


def corpus_of(run: Path, data: Path | None, bundle: "Bundle") -> "Corpus":
    """The corpus that is given, or the one that the run was trained on; it must be of the run's tokenizer."""
    from segue.text.corpus import open_corpus
    from segue.text.tokenizer import digest

    corpus = open_corpus(trained_on(run, data))
    fits = corpus.header.vocab == bundle.model.config.vocab
    if not fits or (bundle.tokenizer is not None and digest(bundle.tokenizer) != digest(corpus.tokenizer)):
        raise InputError(
            f"{corpus.folder} was prepared with another tokenizer than {run}; prepare it again with the run's"
        )
    return corpus
