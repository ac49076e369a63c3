"""JSON from outside: whatever is wrong with it is told in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from segue.errors import SegueError
from segue.interop.bert import load_bert
from segue.interop.files import import_bundle
from segue.text.corpus import read_header
from segue.text.pairs import from_rows, open_pairs
from segue.text.parsing import parse_json, read_object
from segue.text.sources import from_jsonl
from segue.text.tokenizer import load_tokenizer

DEEP = b"[" * 100_000

READERS: dict[str, Callable[[Path], object]] = {
    "corpus.json": lambda path: read_header(path.parent),
    "pairs.json": lambda path: open_pairs(path.parent),
    "tokenizer.json": load_tokenizer,
    "rows.jsonl": lambda path: list(from_jsonl(path, "text").parts["train"]()),
    "pairs.jsonl": lambda path: list(from_rows(path, "source", "target")()),
    "config.json": lambda path: load_bert(path.parent),
    "import/config.json": lambda path: import_bundle(path.parent / "model.safetensors", config=path),
}


@pytest.mark.parametrize("text", [DEEP, b'{"a":' * 100_000, b"{", b"\xff", b"1" * 9999, b"[]"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_object_is_one_line_whoever_reads_it(name: str, text: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    save_file({"weight": torch.zeros(1)}, path.parent / "model.safetensors")
    with pytest.raises(SegueError) as caught:
        READERS[name](path)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    assert parse_json(b'{"a": [1]}', "it") == {"a": [1]}
    for text, wrong in ((DEEP, "it is nested too deeply"), (b"{", "it is no JSON: Expecting")):
        with pytest.raises(SegueError, match=wrong):
            parse_json(text, "it")
    (tmp_path / "list").write_text("[]")
    with pytest.raises(SegueError, match="list should hold an object; found list"):
        read_object(tmp_path / "list")
    with pytest.raises(SegueError, match="nowhere could not be read: No such file"):
        read_object(tmp_path / "nowhere")
