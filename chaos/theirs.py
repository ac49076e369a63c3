"""What others write: rows, archives, vocabularies, word vectors, checkpoints from elsewhere, pickles."""

import json
import os
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from mutations import Mutation, mutated_bytes, mutated_json, mutated_lines, mutated_tensors
from packing import PACKERS, packed
from segue.checkpoint import Bundle, read_tensors
from segue.config import EncoderConfig, XLConfig
from segue.interop.bert import load_bert
from segue.interop.files import export_bundle, import_bundle
from segue.interop.layout import exported
from segue.interop.reference import entries
from segue.interop.vectors import read_vectors
from segue.interop.vocabulary import read_vocabulary
from segue.nn.encoder import Encoder
from segue.text.pairs import from_rows, from_tabs, from_two_files
from segue.text.sources import from_files, from_jsonl
from segue.text.wordpiece import read_wordpiece
from targets import MODEL, READING, TEXT, Target, files_of, fresh_model, use_bundle, use_tokenizer

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sea", "ship", "##s", "a", "n", "##d")


def theirs(made: Path) -> list[Target]:
    """All of them, with their valid files made in a folder."""
    return [*_rows(), *_sources(), *_words(), *_foreign(made), *_pickles(made)]


# Rows, and text in archives.


def _rows() -> list[Target]:
    rows = b"".join(
        json.dumps({"text": line, "more": 1}).encode() + b"\n" for line in ("the sea", "a ship", "é")
    )
    both = b"".join(
        json.dumps({"source": line, "target": line[::-1]}).encode() + b"\n" for line in ("one", "two")
    )
    tabs = "one\teno\ntwo\towt\né\té\n".encode()
    lines = {"left": b"one\ntwo\nthree\n", "right": b"eno\nowt\neerht\n"}
    left_right = dict.fromkeys(lines, mutated_lines)
    plain = [
        Target("JSONL", {"rows.jsonl": rows}, {"rows.jsonl": mutated_lines}, read_rows, share=30),
        Target(
            "JSONL of pairs", {"pairs.jsonl": both}, {"pairs.jsonl": mutated_lines}, read_row_pairs, share=24
        ),
        Target("TSV", {"pairs.tsv": tabs}, {"pairs.tsv": mutated_lines}, read_tabs, share=24),
        Target("two files", lines, left_right, read_two, share=16),
    ]
    packed_rows = [
        _packed("JSONL", f"rows.jsonl{suffix}", rows, mutated_lines, partial(read_rows, suffix=suffix))
        for suffix in PACKERS
    ]
    packed_tabs = [
        _packed("TSV", f"pairs.tsv{suffix}", tabs, mutated_lines, partial(read_tabs, suffix=suffix))
        for suffix in PACKERS
    ]
    return [*plain, *packed_rows, *packed_tabs]


def _packed(kind: str, name: str, text: bytes, inside: Mutation, read: Callable[[Path], object]) -> Target:
    suffix = Path(name).suffix
    whole, mutate = PACKERS[suffix](text), packed(suffix, inside)
    return Target(f"{kind}{suffix}", {name: whole}, {name: lambda draw, _: mutate(draw, text)}, read, share=6)


def read_rows(folder: Path, suffix: str = "") -> None:
    for piece in from_jsonl(folder / f"rows.jsonl{suffix}", "text").parts["train"]():
        assert len(piece.text) <= 8 * 2**20


def read_row_pairs(folder: Path) -> None:
    for _ in from_rows(folder / "pairs.jsonl", "source", "target")():
        pass


def read_tabs(folder: Path, suffix: str = "") -> None:
    for _ in from_tabs(folder / f"pairs.tsv{suffix}")():
        pass


def read_two(folder: Path) -> None:
    for _ in from_two_files(folder / "left", folder / "right")():
        pass


def _sources() -> list[Target]:
    return [
        _packed("text", f"text.txt{suffix}", TEXT, mutated_bytes, partial(read_text, suffix=suffix))
        for suffix in PACKERS
    ]


def read_text(folder: Path, suffix: str) -> None:
    for piece in from_files("text", [folder / f"text.txt{suffix}"]).parts["train"]():
        assert len(piece.text) <= 8 * 2**20


# Vocabularies and word vectors.


def _words() -> list[Target]:
    words = ("the", "sea", "ship")
    rows = [(word, [0.5, -1.0, place]) for place, word in enumerate(words)]
    glove = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows).encode()
    binary = b"".join(f"{word} ".encode() + np.array(row, dtype="<f4").tobytes() for word, row in rows)
    vocab, pieces = b"<unk> 7\n<eos>\nthe 3\nsea\n", "".join(f"{piece}\n" for piece in PIECES).encode()
    return [
        Target("GloVe", {"v.txt": glove}, {"v.txt": mutated_lines}, read_words, share=16),
        Target("Word2Vec text", {"v.txt": b"3 3\n" + glove}, {"v.txt": mutated_lines}, read_words, share=16),
        Target(
            "Word2Vec binary", {"v.txt": b"3 3\n" + binary}, {"v.txt": mutated_vectors}, read_words, share=16
        ),
        Target("vocab.txt", {"vocab.txt": vocab}, {"vocab.txt": mutated_lines}, read_vocab, share=12),
        Target(
            "vocab.txt of BERT", {"vocab.txt": pieces}, {"vocab.txt": mutated_lines}, read_pieces, share=8
        ),
    ]


def mutated_vectors(draw: random.Random, text: bytes) -> bytes:
    """Mostly another first line: how many, and how wide."""
    if draw.random() < 0.4:
        return mutated_bytes(draw, text)
    sizes = (
        b"0",
        b"1",
        b"3",
        b"4",
        b"1000000",
        b"99999999999",
        b"9" * 30,
        b"9" * 5000,
        b"-1",
        b"3.0",
        b"\xb2",
    )
    header = b" ".join(draw.choices(sizes, k=draw.choice((1, 2, 2, 2, 3))))
    return header + b"\n" + text.partition(b"\n")[2]


def read_words(folder: Path) -> None:
    vectors = read_vectors(folder / "v.txt")
    assert vectors.rows.isfinite().all()
    assert len(vectors.words) == len(vectors.rows)
    vectors.fitted(torch.randn(5, vectors.width), ["the", "a", "", "sea", "x"])


def read_vocab(folder: Path) -> None:
    use_tokenizer(read_vocabulary(folder / "vocab.txt", 4))


def read_pieces(folder: Path) -> None:
    read_wordpiece(folder / "vocab.txt").encode(["the sea", ("a", "ships")], 6)


# Checkpoints from elsewhere.


def _foreign(made: Path) -> list[Target]:
    found = []
    shapes = {
        "huggingface": XLConfig(**{**MODEL, "vocab": 30}, cutoffs=(5, 12), divisor=2),
        "reference": XLConfig(**{**MODEL, "vocab": 30}),
    }
    hits: dict[str, Mutation] = {"config.json": mutated_json, "model.safetensors": mutated_tensors}
    for layout, config in shapes.items():
        export_bundle(Bundle(fresh_model(config), READING), made / layout, layout)
        found.append(Target(f"foreign, {layout}", files_of(made / layout), hits, read_foreign, share=6))
    sinusoids = json.loads((made / "reference" / "config.json").read_text()) | {"attn_type": 2, "mem_len": 0}
    _absolute(made / "absolute", sinusoids)
    _bert(made / "bert")
    more: dict[str, Mutation] = {"vocab.txt": mutated_lines, "tokenizer.json": mutated_json}
    return [
        *found,
        Target("foreign, absolute", files_of(made / "absolute"), {"config.json": mutated_json}, read_foreign),
        Target("foreign, BERT", files_of(made / "bert"), {**hits, **more}, read_bert, share=6),
    ]


def _absolute(folder: Path, config: dict[str, Any]) -> None:
    """The authors' sinusoids at the input, which become a table when they are imported."""
    shape = XLConfig(**{**MODEL, "vocab": 30}, encoding="learned", max_positions=config["tgt_len"])
    folder.mkdir()
    weights = exported(dict(fresh_model(shape).state_dict()), entries(shape))
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def read_foreign(folder: Path) -> None:
    use_bundle(import_bundle(folder))


def _bert(folder: Path) -> None:
    folder.mkdir()
    config = EncoderConfig(vocab=len(PIECES), width=4, layers=1, heads=1, feedforward=4, max_positions=8)
    torch.manual_seed(0)
    theirs = {
        "words.": "embeddings.word_embeddings.",
        "places.": "embeddings.position_embeddings.",
        "types.": "embeddings.token_type_embeddings.",
        "norm.": "embeddings.LayerNorm.",
        "pooler.": "pooler.dense.",
        "blocks.0.attention.query.": "encoder.layer.0.attention.self.query.",
        "blocks.0.attention.out.": "encoder.layer.0.attention.output.dense.",
        "blocks.0.attention_norm.": "encoder.layer.0.attention.output.LayerNorm.",
        "blocks.0.feed_forward.inner.": "encoder.layer.0.intermediate.dense.",
        "blocks.0.feed_forward.outer.": "encoder.layer.0.output.dense.",
        "blocks.0.feed_forward_norm.": "encoder.layer.0.output.LayerNorm.",
    }
    weights = {}
    for name, weight in Encoder(config).state_dict().items():
        room, _, part = name.rpartition(".")
        if f"{room}." in theirs:
            weights[theirs[f"{room}."] + part] = weight.clone()
        else:
            key, value = (half.clone() for half in weight.chunk(2))
            weights |= {
                f"encoder.layer.0.attention.self.{own}.{part}": half
                for own, half in (("key", key), ("value", value))
            }
    save_file(weights, folder / "model.safetensors")
    told = {"model_type": "bert", "vocab_size": config.vocab, "hidden_size": 4, "num_hidden_layers": 1}
    told |= {
        "num_attention_heads": 1,
        "intermediate_size": 4,
        "max_position_embeddings": 8,
        "type_vocab_size": 2,
    }
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    read_wordpiece(folder / "vocab.txt").file.save(str(folder / "tokenizer.json"))


@torch.no_grad()
def read_bert(folder: Path) -> None:
    model = load_bert(folder)
    for name in ("vocab.txt", "tokenizer.json"):
        padded = read_wordpiece(folder / name).encode(["the sea", ("a", "ships")], 6)
        known, types = (
            padded.input_ids.max() < model.config.vocab,
            padded.token_type_ids.max() < model.config.types,
        )
        if known and types and padded.input_ids.shape[1] <= model.config.max_positions:
            model(*map(torch.from_numpy, padded[:3]))


# Pickles, which must never be run.

CANARY = "canary"
"""The file that a pickle makes in the folder above if anything of it is run."""


class Trap:
    """Pickles as a call that makes the canary."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call, self._arguments


def _pickles(made: Path) -> list[Target]:
    folder = made / "pickled"
    export_bundle(Bundle(fresh_model(XLConfig(**{**MODEL, "vocab": 30})), READING), folder, "huggingface")
    weights = read_tensors(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    torch.save(weights, made / "old.bin", _use_new_zipfile_serialization=False)
    valid = [(folder / "pytorch_model.bin").read_bytes(), (made / "old.bin").read_bytes()]
    traps = [
        Trap(os.system, f"touch ../{CANARY}"),
        Trap(exec, f"open('../{CANARY}', 'w')"),
        Trap(open, f"../{CANARY}", "w"),
        Trap(eval, f"open('../{CANARY}', 'w')"),
        Trap(Path.touch, Path("..") / CANARY),
    ]
    hostile = []
    for trap in traps:
        hostile += [
            pickle.dumps(value, protocol)
            for value in (trap, {"a": trap}, [trap] * 3)
            for protocol in (0, 2, 4)
        ]
        for new in (True, False):
            torch.save({**weights, "more": trap}, made / "trap.bin", _use_new_zipfile_serialization=new)
            hostile.append((made / "trap.bin").read_bytes())

    def mutate(draw: random.Random, _: bytes) -> bytes:
        text = draw.choice(valid if draw.random() < 0.5 else hostile)
        return mutated_bytes(draw, text) if draw.random() < 0.7 else text

    hits: dict[str, Mutation] = {"pytorch_model.bin": mutate}
    return [Target("pickle", files_of(folder), hits, read_foreign, share=6)]
