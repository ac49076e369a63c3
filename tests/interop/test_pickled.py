"""Pickled vocabularies: read as Python reads them where they are plain, refused in one line where they are not."""

import io
import os
import pickle
import pickletools
import re
import sys
import types
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_files import their_folder

from segue.errors import SegueError
from segue.interop import pickled
from segue.interop.files import import_bundle
from segue.interop.pickled import read_pickle
from segue.interop.vocabulary import read_vocabulary
from segue.text.tokenizer import ByteTokenizer
from test_references import HUGGING_FACE, recording

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
    max_leaves=20,
)


@given(PLAIN, st.integers(0, 4))
def test_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    if protocol < 3 and (b"_codecs" in content or b"__builtin__" in content):
        return  # before protocol 3, bytes are the result of a call, and are left out
    assert run(content) == pickle.loads(content)  # noqa: S301 (our own)


def run(content: bytes) -> Any:
    return pickled._Machine(content, Path("x")).run()


def vocabulary_of(symbols: list[str], **more: Any) -> dict[str, Any]:
    return {
        "counter": Counter(dict.fromkeys(symbols, 9)),
        "special": ["<eos>"],
        "min_freq": 0,
        "max_size": None,
        "lower_case": False,
        "delimiter": None,
        "vocab_file": None,
        "idx2sym": symbols,
        "sym2idx": OrderedDict((symbol, place) for place, symbol in enumerate(symbols)),
        **more,
    }


@pytest.fixture
def corpus_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Objects of classes as the authors named them."""
    module = types.ModuleType("data_utils")
    module.Corpus = type("Corpus", (), {"__module__": "data_utils"})  # type: ignore[attr-defined]
    vocabulary = types.ModuleType("vocabulary")
    vocabulary.Vocab = type("Vocab", (), {"__module__": "vocabulary"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "data_utils", module)
    monkeypatch.setitem(sys.modules, "vocabulary", vocabulary)

    def made(symbols: list[str], **more: Any) -> Any:
        corpus, vocab = module.Corpus(), vocabulary.Vocab()  # type: ignore[attr-defined]
        vocab.__dict__.update(vocabulary_of(symbols, **more))
        corpus.dataset, corpus.vocab, corpus.cutoffs = "wt103", vocab, []
        corpus.train = np.arange(100_000)  # their tokens are in the same file
        corpus.valid = corpus.test = np.arange(10)
        return corpus

    return made


@pytest.mark.parametrize("protocol", range(5))
def test_the_authors_corpus(protocol: int, corpus_of: Any, tmp_path: Path) -> None:
    path = tmp_path / "cache.pkl"
    path.write_bytes(pickle.dumps(corpus_of(["<eos>", "the", "<unk>", "naïve"]), protocol))
    assert read_vocabulary(path, 4).encode("the naïve ship\n".encode()) == [1, 3, 2, 0]


def test_a_corpus_of_python_2(tmp_path: Path) -> None:
    """Texts are bytes, a dict in order is a list of pairs, and the class is that of a script."""
    symbols = ["<eos>", "the", "na\u00efve"]
    strings = [b"U" + bytes([len(text.encode())]) + text.encode() for text in symbols]
    listed = b"](" + b"".join(strings) + b"e"
    pairs = b"](" + b"".join(b"](" + text + b"K" + bytes([n]) + b"e" for n, text in enumerate(strings)) + b"e"
    ordered = b"ccollections\nOrderedDict\n" + pairs + b"\x85R"
    state = b"}(U\x07idx2sym" + listed + b"U\x07sym2idx" + ordered + b"u"
    vocab = b"cvocabulary\nVocab\n)\x81" + state + b"b"
    path = tmp_path / "cache.pkl"
    path.write_bytes(b"\x80\x02c__main__\nCorpus\n)\x81}(U\x05vocab" + vocab + b"ub.")
    assert read_vocabulary(path, 3).encode("the naïve\n".encode()) == [1, 2, 0]
    assert read_pickle(path)["vocab"]["sym2idx"] == {text: n for n, text in enumerate(symbols)}


@pytest.mark.parametrize("kind", ["pickle", "old torch", "torch"])
def test_hugging_faces_folder_has_its_words(kind: str, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "hf", HUGGING_FACE[0])
    size = recording(HUGGING_FACE[0])[2]["vocab_size"]
    words = vocabulary_of(["<eos>", "<unk>", *(f"word{number}" for number in range(size - 2))])
    path = folder / "vocab.bin"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(words))
    else:
        torch.save(words, path, _use_new_zipfile_serialization=kind == "torch")
    tokenizer = import_bundle(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(b"word0 none\nword3\n") == [2, 1, 0, 5, 0]
    path.write_bytes(pickle.dumps(vocabulary_of(["a"])))
    with pytest.raises(SegueError, match="has 1 symbols and the model has"):
        import_bundle(folder)


def test_the_conventions_of_the_data_sets(tmp_path: Path) -> None:
    def tokenizer(symbols: list[str], **more: Any) -> Any:
        path = tmp_path / "vocab.pkl"
        path.write_bytes(pickle.dumps(vocabulary_of(symbols, **more)))
        return read_vocabulary(path, len(symbols))

    enwik8 = tokenizer([str(number) for number in (32, 101, 195, 169)])
    assert isinstance(enwik8, ByteTokenizer)
    assert enwik8.encode("e é".encode()).tolist() == [1, 0, 2, 3]
    text8 = tokenizer(list("_etaoinshrdlucmfwypvbgkqjxz"))
    assert text8.encode(b"te a").tolist() == [2, 1, 0, 3]
    lm1b = tokenizer(["<S>", "<UNK>", "Sea", "sea"])
    assert lm1b.encode(b"sea Sea\nship\n") == [3, 2, 0, 1, 0]
    lower = tokenizer(["<eos>", "<unk>", "sea"], lower_case=True)
    assert lower.encode(b"SEA\n") == [2, 0]
    letters = tokenizer(["<unk>", "a", "b"], delimiter="")
    assert letters.encode(b"ab!") == [1, 2, 0]


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    ("hostile", "name"),
    [
        (Call(os.system, "touch exploded"), "system"),
        (Call(eval, "1"), "eval"),
        (Call(getattr, "a", "upper"), "getattr"),
        (Call(io.open, "exploded", "w"), "open"),
        (torch.nn.Linear(1, 1), "torch"),
        (np.random.default_rng(0), "numpy"),
        ({1, 2}, "builtin|\\\\x8f"),
    ],
)
def test_nothing_else_is_read_and_nothing_executed(
    hostile: Any, name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "vocab.bin"
    path.write_bytes(pickle.dumps({"idx2sym": hostile}, protocol))
    with pytest.raises(SegueError, match=f"(asks for|instruction) .*{name}.* nothing was executed") as caught:
        read_vocabulary(path, 3)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()


UNKNOWN = {
    "INST", "OBJ", "NEWOBJ_EX", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER",
    "EMPTY_SET", "ADDITEMS", "FROZENSET", "BYTEARRAY8", "LONG4", "DUP", "POP_MARK",
}  # fmt: skip
"""The instructions of pickles that no vocabulary needs."""


def test_every_other_instruction_is_refused_by_name() -> None:
    known = {*pickled.VALUES, *pickled.STEPS, b"."}
    codes = {code.name: code.code.encode("latin-1") for code in pickletools.opcodes}
    assert {name for name, code in codes.items() if code not in known} == UNKNOWN
    for code in {bytes([number]) for number in range(256)} - known:
        with pytest.raises(
            SegueError, match=f"instruction {re.escape(repr(code))} at byte 1 .*nothing was executed"
        ):
            pickled._Machine(b"N" + code + b"os\nsystem\n.", Path("x")).run()


BIG = b"](" + b"K\x01" * 5000 + b"eq\x00"
"""A list of 5,000 numbers, remembered."""

BOMBS = {
    "values without end": b"(" * 100_000 + b".",
    "a dict copied again and again": b"}(" + b"".join(b"M" + bytes([n % 256, n // 256]) + b"K\x00" for n in range(5000))
    + b"uq\x00" + b"cvocabulary\nVocab\n)\x81h\x00b" * 30 + b".",
    "pairs copied again and again": b"](" + b"K\x01K\x02\x86" * 5000 + b"eq\x00"
    + b"ccollections\nOrderedDict\nh\x00\x85R" * 30 + b".",
    "memo without end": b"N" + b"".join(b"r" + number.to_bytes(4, "little") for number in range(60_000)) + b".",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_VALUES", 50_000)
    with pytest.raises(SegueError, match="builds more than 50,000 values"):
        run(BOMBS[name])


@pytest.mark.parametrize(
    "content",
    [
        b"](" * 200_000 + b"e" * 200_000 + b".",  # lists in lists
        b"}q\x00h\x00K\x01h\x00s.",  # a dict in itself
        b"](h\x00e.",
        b"]q\x00(" + b"h\x00" * 1000 + b"e.",
        b")" + b"\x85" * 500_000 + b"K\x01\x85.",
    ],
)
def test_depth_does_no_harm(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vocab.bin"
    path.write_bytes(content)
    with pytest.raises(SegueError, match="no list of symbols|no readable pickle"):
        read_vocabulary(path, 3)


@pytest.mark.parametrize(
    "content",
    [
        b")" + b"\x85" * 300_000 + b"}" + b"\x94h\x000h\x00K\x01s.",
        b"}(" + b")" + b"\x85" * 300_000 + b"K\x01u.",  # a deep key
        b"ccopyreg\n_reconstructor\n)" + b"\x85" * 300_000 + b"\x85R.",  # a deep class
        b"(]]\x93.",
        b"X\xff\xff\xff\xffabc.",
        b"T\xff\xff\xff\xffabc.",
        b"\x8d" + b"\xff" * 8 + b".",
        b"I" + b"9" * 10_000 + b"\n.",
        b"V" + b"a" * 100_000,
        b"g5\n.",
        b"p-1\n.",
        b"Nb.",
        b".",
        b"",
        b"S'abc\n.",
        b"ccollections\nOrderedDict\n](](K\x01K\x02K\x03ee\x85R.",
    ],
)
def test_what_breaks_the_rules_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(content)
    with pytest.raises(SegueError) as caught:
        read_vocabulary(path, 3)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60), PLAIN, st.integers(0, 60))
def test_any_bytes_are_read_or_refused(rubbish: bytes, value: Any, place: int) -> None:
    content = pickle.dumps(value, 2)
    for damaged in (rubbish, content[:place] + rubbish[:2] + content[place + 2 :]):
        machine = pickled._Machine(damaged, Path("x"))
        try:
            machine.run()
        except (SegueError, *pickled.BROKEN):
            pass


def test_an_archive_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "vocab.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"b")
    with pytest.raises(SegueError, match="is a zip archive without a value of torch.save"):
        read_vocabulary(path, 3)
