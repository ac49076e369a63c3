"""The documented way from the authors' archives to a score, with files made in their formats."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import write_checkpoint
from test_cli import segue
from test_tensorflow import SHAPES, VOCAB, their_nats, weights_of

from segue.checkpoint import load

WORDS = ["<eos>", "<unk>", *(f"w{number}" for number in range(VOCAB - 2))]


def archive(path: Path, symbols: list[str]) -> Path:
    """A folder of the authors: `model` with a checkpoint, `data` with the pickled vocabulary."""
    path.mkdir()
    write_checkpoint(path / "model", {name: w.float() for name, w in weights_of(**SHAPES["wt103"]).items()})
    (path / "data").mkdir()
    (path / "data" / "cache.pkl").write_bytes(pickle.dumps({"vocab": {"idx2sym": symbols}}, protocol=2))
    return path / "model"


def test_from_the_authors_words_to_a_perplexity(tmp_path: Path) -> None:
    model, text = archive(tmp_path / "tf_wt103", WORDS), tmp_path / "text.txt"
    text.write_text("w1 w2 w20 w3 none\nw4 w17 w5\n" * 4)
    bundle, data = tmp_path / "bundle", tmp_path / "corpus"
    segue("import", model, "-o", bundle)
    cut = ["--tokenizer-file", bundle / "tokenizer.json", "--valid", "0", "--test", "0"]
    segue("prepare", text, "-o", data, *cut)
    reading = ["--segment", "4", "--memory", "5", "--clamp", "3", "--span", "6"]
    facts = json.loads(segue("eval", bundle, "--data", data, "--split", "train", *reading, "--json"))
    ids = load(bundle).tokenizer.encode(text.read_bytes())  # type: ignore[union-attr]
    weights, tokens = weights_of(**SHAPES["wt103"]), torch.tensor(list(ids))
    memory, nats = [torch.zeros(5, 12, dtype=torch.float64)] * 2, []
    for first in range(0, len(tokens) - 1, 4):
        losses, memory = their_nats(weights, tokens[first : first + 5], memory, 3, 1e-5)
        nats.extend(losses.tolist())
    assert facts["nats_per_token"] == pytest.approx(np.mean(nats), abs=1e-4)


def test_enwik8s_vocabulary_drops_newlines(tmp_path: Path) -> None:
    symbols = [str(number) for number in b"abcdefghijklmnopqrstu v"]
    model, text = archive(tmp_path / "tf_enwik8", symbols), tmp_path / "text"
    text.write_bytes(b"abc def\n" * 20)
    segue("import", model, "-o", tmp_path / "bundle")
    cut = ["--tokenizer-file", tmp_path / "bundle" / "tokenizer.json", "--valid", "0", "--test", "0"]
    segue("prepare", text, "-o", tmp_path / "corpus", "--reference", *cut)
    reading = ["--segment", "4", "--memory", "5", "--split", "train"]
    facts = json.loads(segue("eval", tmp_path / "bundle", "--data", tmp_path / "corpus", *reading, "--json"))
    assert facts["tokens"] == 20 * 7 - 1
    model = archive(tmp_path / "tf_wt103", WORDS)
    segue("import", model, "-o", tmp_path / "words")
    words = tmp_path / "words" / "tokenizer.json"
    error = segue("prepare", text, "-o", tmp_path / "c", "--reference", "--tokenizer-file", words, code=1)
    assert "is no tokenizer of bytes" in error


def test_a_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    model = archive(tmp_path / "tf_wt103", WORDS)
    (model.parent / "data" / "cache.pkl").write_bytes(pickle.dumps({"vocab": print}))
    error = segue("import", model, "-o", tmp_path / "bundle", code=1)
    assert "asks for 'builtins.print', which no vocabulary needs; nothing was executed" in error
    assert not (tmp_path / "bundle").exists()
