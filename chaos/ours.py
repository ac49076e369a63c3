"""What segue writes and reads again: bundles, prepared text and pairs, runs, recipes; altered by someone else."""

import json
import random
import tomllib
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import segue
from mutations import (
    Mutation,
    mutated_bytes,
    mutated_json,
    mutated_lines,
    mutated_numbers,
    mutated_tensors,
    mutated_toml,
    toml_value,
)
from segue.checkpoint import (
    CHECKSUMS,
    Bundle,
    Translator,
    load,
    load_translator,
    read_tensors,
    seal,
)
from segue.cli.eval_translator import data_of
from segue.config import RecurrentConfig, Seq2SeqConfig, Translating, XLConfig
from segue.infer.evaluate import evaluate
from segue.infer.translate import translate
from segue.lab.record import Record, read_record
from segue.nn.models import build_translator
from segue.recipe import Recipe, read_recipe, recipe_of, recipe_toml, with_changes
from segue.text.batches import batches
from segue.text.corpus import file_checksum, open_corpus
from segue.text.lanes import Lanes
from segue.text.learn import train_bpe, train_characters, train_words
from segue.text.pair_batches import batch_of
from segue.text.pairs import PairsConfig, open_pairs, prepare_pairs
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.text.special_tokens import vocab_with_special
from segue.text.tokenizer import ByteTokenizer, Tokenizer
from segue.training.language import LanguageTask
from segue.training.log import Log
from segue.training.state import load_state
from targets import MODEL, READING, TEXT, Target, files_of, fresh_model, use_bundle, use_tokenizer

SUMS = (CHECKSUMS,)


def ours(made: Path) -> list[Target]:
    """All of them, with their valid files made in a folder."""
    return [*_bundles(made), *_translators(made), *_corpora(made), *_runs(made), *_recipes()]


def reseal(folder: Path) -> None:
    """Checksums that are right again, as an attacker would leave them."""
    (folder / CHECKSUMS).unlink(missing_ok=True)
    seal(folder)


# Bundles of language models.


@cache
def _tokenizers() -> dict[str, Tokenizer]:
    some = [TEXT]
    return {
        "bytes": ByteTokenizer(),
        "characters": train_characters(some, 1),
        "words": train_words(some, 1),
        "bpe": train_bpe(some, 260),
    }


def _bundles(made: Path) -> list[Target]:
    shapes = {
        "xl": XLConfig(**MODEL),
        "adaptive": XLConfig(**{**MODEL, "vocab": 260}, cutoffs=(20, 60), divisor=2, tied=False),
        "shaw": XLConfig(**{**MODEL, "layers": 2}, encoding="shaw", max_distance=3, biases="per-layer"),
        "learned": XLConfig(**MODEL, encoding="learned", max_positions=32),
        "recurrent": RecurrentConfig(vocab=256, width=4, layers=1),
    }
    found = []
    for name, config in shapes.items():
        tokenizer = _tokenizers()["bpe" if config.vocab == 260 else "bytes"]
        Bundle(fresh_model(config), READING, tokenizer).save(made / name)
        hits: dict[str, Mutation] = {"config.json": mutated_json, "model.safetensors": mutated_tensors}
        if name == "xl":
            hits |= {"tokenizer.json": mutated_json}
        found.append(Target(f"bundle, {name}", files_of(made / name), hits, read_bundle, reseal, SUMS))
    for name in ("words", "characters", "bpe"):
        known = _tokenizers()[name]
        folder = made / f"bundle-{name}"
        Bundle(fresh_model(XLConfig(**{**MODEL, "vocab": known.size})), READING, known).save(folder)
        hits = {"tokenizer.json": mutated_json}
        found.append(Target(f"tokenizer.json, {name}", files_of(folder), hits, read_bundle, reseal, SUMS, 2))
    plain = files_of(made / "xl")
    weights = {"model.safetensors": plain["model.safetensors"]}
    return [
        *found,
        Target("SHA256SUMS", plain, {CHECKSUMS: mutated_lines}, read_bundle),
        Target("safetensors", weights, {"model.safetensors": mutated_tensors}, read_weights, share=30),
    ]


def read_weights(folder: Path) -> None:
    for tensor in read_tensors(folder / "model.safetensors").values():
        assert tensor.numel() * tensor.element_size() <= 2**20, "more than the file holds"


def read_bundle(folder: Path) -> None:
    use_bundle(load(folder))


# Bundles of translators.


def _translators(made: Path) -> list[Target]:
    known, other = _tokenizers()["bpe"], _tokenizers()["bytes"]
    shape = {"width": 4, "heads": 1, "feedforward": 4, "encoder_layers": 1, "decoder_layers": 1}
    found = []
    for name, source in (("shared", known), ("separate", other)):
        own = 0 if source is known else vocab_with_special(source.size)
        config = Seq2SeqConfig(vocab=vocab_with_special(known.size), source_vocab=own, **shape)
        torch.manual_seed(0)
        model = build_translator(config).eval()
        Translator(model, Translating(beam_width=2, longest=6), source, known).save(made / name)
        hits: dict[str, Mutation] = {"config.json": mutated_json, "model.safetensors": mutated_tensors}
        hits |= {"tokenizer.json": mutated_json}
        found.append(
            Target(f"translator, {name}", files_of(made / name), hits, read_translator, reseal, SUMS, 2)
        )
    return found


def read_translator(folder: Path) -> None:
    translator = load_translator(folder)
    if max(translator.translating.beam_width, translator.translating.longest) <= 8:
        translate(translator, [b"the sea", b"a"])


# Prepared text and pairs.


def _corpora(made: Path) -> list[Target]:
    (made / "text.txt").write_bytes(TEXT)
    prepare(from_files("text", [made / "text.txt"]), made / "corpus", PrepareConfig(), lambda *_: None)
    words = PrepareConfig(tokenizer="words")
    prepare(from_files("text", [made / "text.txt"]), made / "words-corpus", words, lambda *_: None)
    lines = [(line, line[::-1]) for line in TEXT.splitlines()]
    parts = {"train": lambda: iter(lines[:10]), "valid": lambda: iter(lines[10:])}
    prepare_pairs(parts, made / "pairs", PairsConfig(size=260, longest=8), lambda *_: None)
    plain = {"corpus.json": mutated_json, "ids.bin": mutated_numbers("B"), "ends.bin": mutated_numbers("Q")}
    both = {"pairs.json": mutated_json, "ids.bin": mutated_numbers("I"), "ends.bin": mutated_numbers("Q")}
    token = {"tokenizer.json": mutated_json}
    corpus, pairs = "corpus.json", "pairs.json"
    return [
        Target(name, files_of(made / folder), hits, read, partial(mend_header, header), (header,), share)
        for name, folder, hits, read, header, share in (
            ("corpus", "corpus", {**plain, **token}, read_corpus, corpus, 8),
            ("corpus of words", "words-corpus", {**plain, **token}, read_corpus, corpus, 4),
            ("pairs", "pairs", {**both, **token}, read_pairs, pairs, 8),
        )
    ]


def mend_header(name: str, folder: Path) -> None:
    """The checksums that a header keeps, if it still is one."""
    try:
        header = json.loads((folder / name).read_bytes())
        for file in header["checksums"]:
            if (folder / file).is_file():
                header["checksums"][file] = file_checksum(folder / file)
        (folder / name).write_text(json.dumps(header))
    except (ValueError, TypeError, KeyError, RecursionError, OSError):
        return


@cache
def _reader(vocab: int) -> Any:
    return fresh_model(XLConfig(**{**MODEL, "vocab": vocab}))


def read_corpus(folder: Path) -> None:
    corpus = open_corpus(folder)
    for name in corpus.header.splits:
        stream = corpus.stream(name)
        use_tokenizer(corpus.tokenizer)
        stream.text(0, 10)
        lanes = Lanes(stream, 2)
        for position in (0, 1, lanes.epoch, 10**6):
            segment = lanes.segment(position, min(4, lanes.epoch))
            assert int(segment.tokens.max()) < corpus.header.vocab
        if corpus.header.vocab <= 300:
            evaluate(_reader(corpus.header.vocab), stream, READING, limit=16)


def read_pairs(folder: Path) -> None:
    pairs = open_pairs(folder)
    for name in pairs.header.splits:
        lengths = pairs.lengths(name)
        part = pairs.split(name)
        assert len(lengths) == part.pairs
        if not part.pairs:
            continue
        for numbers in batches(lengths, 64, 0, 0):
            batch = batch_of(pairs, numbers + part.begin)
            assert int(batch.decoder_input.max()) < pairs.header.vocab
            assert int(batch.source.max()) < (pairs.header.source_vocab or pairs.header.vocab)
        for _ in pairs.texts(name):
            pass


# Runs.


def _runs(made: Path) -> list[Target]:
    small = _recipe()
    run = segue.train(small, made / "corpus", made / "run")
    checkpoint = run / "checkpoints" / "step-00000002"
    told = {"run.json": (run / "run.json").read_bytes()}
    log = {"log.jsonl": (run / "log.jsonl").read_bytes()}
    counters = "checkpoints/step-00000002/training.json"
    task = LanguageTask(small, open_corpus(made / "corpus"), torch.device("cpu"))
    record = Record(
        experiment="speed",
        version=1,
        made="2025-01-01",
        command="segue lab speed",
        seconds=1.0,
        setting={"quick": True, "seeds": [0]},
        versions={"segue": segue.__version__},
        machine={"cores": 2},
        results={"rows": [1, 2]},
    )
    kept = {"speed.json": record.model_dump_json().encode()}
    return [
        Target("run.json", told, {"run.json": mutated_json}, read_origin, share=8),
        Target("log.jsonl", log, {"log.jsonl": mutated_lines}, read_log, share=8, grows=True),
        Target(
            "training.json",
            files_of(run),
            {counters: mutated_json},
            partial(read_run, task),
            partial(_reseal_below, checkpoint.relative_to(run)),
            share=2,
            grows=True,
        ),
        Target("lab record", kept, {"speed.json": mutated_json}, read_lab, share=8),
    ]


def _reseal_below(below: Path, folder: Path) -> None:
    reseal(folder / below)


def _recipe() -> Recipe:
    return Recipe(
        model={**MODEL, "dropout": 0.1},
        train={"lanes": 2, "segment": 4, "memory": 4, "steps": 2, "save_every": 1, "keep": 2},
        reading={"segment": 4, "reach": {"memory": 4}},
    )


def read_origin(folder: Path) -> None:
    open_corpus(data_of(folder, None))


def read_log(folder: Path) -> None:
    with Log(folder, 2):
        pass


def read_run(task: LanguageTask, folder: Path) -> None:
    load(folder)
    load_state(folder, task.fresh, [])


def read_lab(folder: Path) -> None:
    assert read_record(folder, "speed") is not None


# Recipes.


def _recipes() -> list[Target]:
    text = recipe_toml(_recipe()).encode()
    names = (
        "train.steps",
        "model.width",
        "reading.reach.memory",
        "model",
        "train.learning_rate",
        "a.b.c",
        "",
        "train..x",
    )
    changes = {"changes.txt": b"\n".join(f"{name}=1".encode() for name in names[:1])}

    def change(draw: random.Random, _: bytes) -> bytes:
        value = draw.choice((toml_value(draw), mutated_bytes(draw, b"100")))
        return draw.choice(names).encode() + draw.choice((b"=", b"", b"==")) + value

    return [
        Target("recipe", {"recipe.toml": text}, {"recipe.toml": mutated_toml}, read_toml, share=30),
        Target("--set", changes, {"changes.txt": change}, read_changes, share=24),
    ]


def read_toml(folder: Path) -> None:
    recipe = recipe_of(read_recipe(folder / "recipe.toml"))
    again = recipe_of(tomllib.loads(recipe_toml(recipe)))
    assert again == recipe, "written down, it is another"


def read_changes(folder: Path) -> None:
    change = (folder / "changes.txt").read_bytes().decode(errors="surrogateescape")
    values = tomllib.loads(recipe_toml(_recipe()))
    recipe_of(with_changes(values, [change]))
