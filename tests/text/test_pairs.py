"""Pairs on disk, and in batches."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.checksums import file_checksum
from segue.errors import SegueError
from segue.progress import silent
from segue.text.batches import batches, longest_first
from segue.text.pairs import (
    Pairs,
    PairsConfig,
    PairSet,
    cased,
    from_rows,
    from_tabs,
    from_two_files,
    open_pairs,
    prepare_pairs,
)

PAIRS = [("Ein Haus.", "A house."), ("Der Hund läuft.", "The dog runs."), ("Ja", "Yes"), ("", "nothing")]


def pairs() -> Pairs:
    return lambda: ((ours.encode(), theirs.encode()) for ours, theirs in PAIRS)


@pytest.mark.parametrize("joint", [True, False])
def test_what_was_prepared_is_what_was_said(tmp_path: Path, joint: bool) -> None:
    config = PairsConfig(size=300, joint=joint)
    header = prepare_pairs({"train": pairs(), "valid": pairs()}, tmp_path / "pairs", config, silent)
    pair_set = open_pairs(tmp_path / "pairs")
    assert pair_set.header == header
    assert header.splits["train"].pairs == 3
    assert header.splits["train"].empty == 1
    assert (header.source_vocab == 0) == joint
    for number in range(6):
        source, target = pair_set.pair(number)
        texts = (
            pair_set.source.decode(source.tolist()).decode(),
            pair_set.target.decode(target.tolist()).decode(),
        )
        assert texts == PAIRS[number % 3]
        assert pair_set.lengths("valid")[number % 3].tolist() == [len(source) + 1, len(target) + 1]


@pytest.mark.parametrize("lower", [False, True])
def test_what_is_too_long_is_read_in_part_counted_and_kept_whole(tmp_path: Path, lower: bool) -> None:
    config = PairsConfig(size=257, longest=5, lower=lower)
    header = prepare_pairs({"train": pairs(), "valid": pairs()}, tmp_path / "pairs", config, silent)
    pair_set = open_pairs(tmp_path / "pairs")
    for split in ("train", "valid"):
        part, lengths = header.splits[split], pair_set.lengths(split)
        assert part.cut == 4
        assert lengths.max() == 6
        assert part.tokens == lengths.sum() - lengths.size
        for number, sizes in zip(range(part.begin, part.end), lengths, strict=True):
            assert [len(side) + 1 for side in pair_set.pair(number)] == sizes.tolist()
        wanted = [(ours.encode(), theirs.encode()) for ours, theirs in PAIRS[:3]]
        assert list(pair_set.texts(split)) == [
            (cased(ours, lower), cased(theirs, lower)) for ours, theirs in wanted
        ]


@pytest.mark.parametrize("joint", [True, False])
def test_words_that_are_unknown_stay_in_the_text(tmp_path: Path, joint: bool) -> None:
    """References are what was written: a model must not be right because it says <unk>."""
    config = PairsConfig(tokenizer="words", minimum=2, joint=joint, lower=True)
    parts = {"train": lambda: iter([(b"a sea", b"ein Meer"), (b"a ship", b"ein Schiff")]), "valid": pairs()}
    header = prepare_pairs(parts, tmp_path / "pairs", config, silent)
    pair_set = open_pairs(tmp_path / "pairs")
    assert header.vocab == (5 if joint else 4)  # <unk>, a, ein; start, end
    assert [side.tolist() for side in pair_set.pair(0)] == ([[1, 0], [2, 0]] if joint else [[1, 0], [1, 0]])
    assert list(pair_set.texts("valid")) == [
        (cased(ours.encode(), True), cased(theirs.encode(), True)) for ours, theirs in PAIRS[:3]
    ]
    assert list(pair_set.texts("train"))[1] == (b"a ship", b"ein schiff")
    (tmp_path / "pairs" / "texts.txt").write_text("a sea\n")
    with pytest.raises(SegueError, match="texts.txt has changed"):
        open_pairs(tmp_path / "pairs")
    lies = header.model_dump() | {
        "checksums": {**header.checksums, "texts.txt": file_checksum(tmp_path / "pairs" / "texts.txt")}
    }
    (tmp_path / "pairs" / "pairs.json").write_text(json.dumps(lies))
    with pytest.raises(SegueError, match="texts.txt has 1 lines; 5 pairs have twice as many"):
        open_pairs(tmp_path / "pairs")


def test_older_folders_are_prepared_again_if_a_side_was_cut(tmp_path: Path) -> None:
    def older(longest: int) -> PairSet:
        folder = tmp_path / str(longest)
        prepare_pairs({"train": pairs()}, folder, PairsConfig(size=257, longest=longest), silent)
        values = json.loads((folder / "pairs.json").read_text())
        del values["whole"]
        (folder / "pairs.json").write_text(json.dumps(values))
        return open_pairs(folder)

    assert len(list(older(50).texts("train"))) == 3
    with pytest.raises(SegueError, match="4 sides of train cut at 5 tokens; .* prepare it again") as caught:
        list(older(5).texts("train"))
    assert "\n" not in str(caught.value)


def test_lower_case(tmp_path: Path) -> None:
    prepare_pairs({"train": pairs()}, tmp_path / "pairs", PairsConfig(size=257, lower=True), silent)
    pair_set = open_pairs(tmp_path / "pairs")
    assert pair_set.target.decode(pair_set.pair(0)[1].tolist()) == b"a house."


def test_the_three_forms_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "de").write_text("eins \nzwei\n")
    (tmp_path / "en").write_text("one\ntwo\n")
    (tmp_path / "tabs").write_text("eins\tone\nzwei\ttwo\r\n")
    (tmp_path / "rows").write_text('{"de": "eins", "en": "one"}\n{"de": "zwei", "en": "two"}\n')
    wanted = [(b"eins", b"one"), (b"zwei", b"two")]
    assert list(from_two_files(tmp_path / "de", tmp_path / "en")()) == wanted
    assert list(from_tabs(tmp_path / "tabs")()) == wanted
    assert list(from_rows(tmp_path / "rows", "de", "en")()) == wanted


def test_what_cannot_be_paired_is_refused(tmp_path: Path) -> None:
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "four").write_text("a\nb\nc\nd\n")
    for left, right in (("two", "four"), ("four", "two")):
        with pytest.raises(SegueError, match="two has 2 lines and .*four 4"):
            list(from_two_files(tmp_path / left, tmp_path / right)())
    (tmp_path / "tabs").write_text("a\tb\na\tb\tc\n")
    with pytest.raises(SegueError, match="line 2 of .* has 3 fields"):
        list(from_tabs(tmp_path / "tabs")())
    (tmp_path / "rows").write_text('{"de": "a", "en": "b"}\n{"de": "a"}\n')
    with pytest.raises(SegueError, match="line 2 of .* has no text under 'de' and 'en'"):
        list(from_rows(tmp_path / "rows", "de", "en")())
    with pytest.raises(SegueError, match="there are no pairs to train on"):
        prepare_pairs({"train": lambda: iter([(b"", b"")])}, tmp_path / "x", PairsConfig(size=257), silent)
    assert not (tmp_path / "x").exists()
    prepare_pairs({"train": pairs()}, tmp_path / "pairs", PairsConfig(size=257), silent)
    (tmp_path / "pairs" / "ids.bin").write_bytes(b"1234")
    with pytest.raises(SegueError, match="has changed"):
        open_pairs(tmp_path / "pairs")


def test_what_is_strange_in_a_file_is_taken_or_named(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    other.write_bytes(b"fine\nfine\n")
    rows, tabs, lines = from_rows(path, "s", "t"), from_tabs(path), from_two_files(other, path)

    def taken(read: Pairs, text: bytes, *wanted: tuple[bytes, bytes]) -> None:
        path.write_bytes(text)
        assert list(read()) == list(wanted)

    def named(read: Pairs, text: bytes, match: str) -> None:
        path.write_bytes(text)
        with pytest.raises(SegueError, match=match) as caught:
            list(read())
        assert "\n" not in str(caught.value)

    taken(rows, rb'{"s": "a\r\nb\n\nc\rd", "t": "e\u0000"}' + b"\r\n", (b"a b  c d", b"e\0"))
    taken(tabs, b"a\0b\tc\r\n", (b"a\0b", b"c"))
    taken(lines, b"\r\nb\r\n", (b"fine", b""), (b"fine", b"b"))
    named(
        rows,
        b'{"s": "a", "t": "b"}\n' + rb'{"s": "\ud83d", "t": "b"}',
        "line 2 of .*file holds half a character",
    )
    named(rows, b'{"s": "\xff", "t": "b"}\n', "line 1 of .*file is no JSON")
    named(rows, b'{"s": "a", "t": "b"}\n\n', "line 2 of .*file is no JSON")
    named(tabs, b"a\tb\na\xff\tb\n", r"line 2 of .*file is not UTF-8: found b'\\xff' after b'a'; convert it")
    named(lines, b"b\n\xe6\x9d\n", "line 2 of .*file is not UTF-8")


some_lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80).map(
    np.array
)


@given(some_lengths, st.integers(1, 60), st.integers(0, 3), st.integers(0, 3))
def test_every_pair_is_in_one_batch_and_no_batch_exceeds_the_budget(
    lengths: "np.ndarray", budget: int, seed: int, epoch: int
) -> None:
    for chosen in (batches(lengths, budget, seed, epoch), longest_first(lengths, budget)):
        assert sorted(np.concatenate(chosen).tolist()) == list(range(len(lengths)))
        for batch in chosen:
            assert len(batch) == 1 or lengths[batch].max() * len(batch) <= budget
    again = batches(lengths, budget, seed, epoch)
    assert [batch.tolist() for batch in again] == [
        batch.tolist() for batch in batches(lengths, budget, seed, epoch)
    ]


def test_every_epoch_has_an_order_of_its_own() -> None:
    lengths = np.full((50, 2), 5)
    first, second = batches(lengths, 20, 0, 0), batches(lengths, 20, 0, 1)
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in second]


def test_batches_hold_like_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, (2000, 2))
    padded = sum(lengths[batch].max() * len(batch) for batch in batches(lengths, 400, 0, 0))
    assert padded < 1.1 * lengths.max(axis=1).sum()
