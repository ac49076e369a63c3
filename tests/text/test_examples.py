"""Labelled examples: what was prepared is what was said; what does not fit is one line with its number."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders import wordpiece
from segue.errors import SegueError
from segue.progress import silent
from segue.text.corpus import file_checksum
from segue.text.example_files import read_examples
from segue.text.example_pieces import labelled_questions, labelled_sentences, labelled_texts
from segue.text.examples import (
    ExampleSet,
    ExampleTask,
    LabelledText,
    Question,
    TaggedWords,
    by_shares,
    open_examples,
    prepare_examples,
)
from segue.text.windows import owners, windows

FILES: dict[ExampleTask, tuple[str, str]] = {
    "classify": ("a.tsv", "good\tthe animal did cross .\nbad\tthe street\n"),
    "pairs": ("a.tsv", "yes\tthe animal\tan animal\nno\tthe street\tnot\n"),
    "tag": ("a.conll", "-DOCSTART- x O\n\nthe x O\nanimal y B-a\n\nstreet z I-b\n"),
    "answer": (
        "a.json",
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": "the animal did cross",
                                "qas": [
                                    {
                                        "id": "q1",
                                        "question": "who ?",
                                        "answers": [{"text": "animal", "answer_start": 4}],
                                    },
                                    {"id": "q2", "question": "where ?", "is_impossible": True, "answers": []},
                                ],
                            }
                        ]
                    }
                ]
            }
        ),
    ),
}
SQUAD = '{"data": [{"paragraphs": [{"context": "the animal", "qas": [%s]}]}]}'


def prepared(
    folder: Path,
    task: ExampleTask,
    content: str | bytes,
    *,
    score: bool = False,
    columns: Sequence[str] = (),
    name: str,
) -> ExampleSet:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    parts = {"train": read_examples(folder / name, task, score=score, columns=columns)}
    prepare_examples(
        parts, folder / "out", task, score=score, vocabulary=lambda _: wordpiece(folder), report=silent
    )
    return open_examples(folder / "out")


@pytest.mark.parametrize("task", FILES)
def test_what_was_prepared_is_what_was_said(task: ExampleTask, tmp_path: Path) -> None:
    name, content = FILES[task]
    opened = prepared(tmp_path, task, content, name=name)
    first, second = opened.examples("train")
    head = opened.header.head
    if task == "classify":
        assert (first.inputs, first.labels) == (("the animal did cross .",), ("good",))
        assert (head.task, head.labels, head.pairs) == ("text", ("bad", "good"), False)
    elif task == "pairs":
        assert second.inputs == ("the street", "not")
        assert (head.task, head.pairs) == ("text", True)
    elif task == "tag":
        assert isinstance(first, TaggedWords)
        assert (first.words, first.tags, second.labels) == (("the", "animal"), ("O", "B-a"), ("I-b",))
        assert head.labels == ("O", "B-a", "I-b")
    else:
        assert isinstance(second, Question)
        assert (second.answers, second.name) == ((), "q2")
        assert (head.task, head.no_answer) == ("span", True)


def test_rows_and_named_columns_say_the_same(tmp_path: Path) -> None:
    rows = [
        ("classify", {"label": 1, "text": "the animal"}, {"label": 0, "text": "the street"}),
        (
            "pairs",
            {"label": "a", "text": "the", "second": "animal"},
            {"label": "b", "text": "x", "second": "y"},
        ),
        ("tag", {"words": ["the"], "tags": ["O"]}, {"words": ["animal"], "tags": ["B-a"]}),
        (
            "answer",
            {"question": "who", "context": "the animal", "answers": {"text": ["the"], "answer_start": [0]}},
            {"question": "who", "context": "the animal", "answers": []},
        ),
    ]
    for number, (task, *both) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = "".join(json.dumps(row) + "\n" for row in both)
        assert len(prepared(folder, task, text, name="a.jsonl").examples("train")) == 2  # type: ignore[arg-type]
    folder = tmp_path / "named"
    folder.mkdir()
    text = "\ufeffid\treview\tsentiment\n1\tthe animal\tgood\n2\tthe street\tbad\n"
    opened = prepared(folder, "classify", text, name="a.tsv", columns=["sentiment", "review"])
    assert [one.labels for one in opened.examples("train")] == [("good",), ("bad",)]


def test_scores_are_numbers(tmp_path: Path) -> None:
    opened = prepared(tmp_path, "pairs", "4.5\tthe\tanimal\n1e-1\tx\ty\n", score=True, name="a.tsv")
    assert [one.score for one in opened.examples("train")] == [4.5, 0.1]  # type: ignore[union-attr]
    assert (opened.header.head.task, opened.header.head.pairs) == ("score", True)


BAD = [
    ("classify", "good\tx\nbad\n", "line 2 of .*a.tsv has 1 column; label, text make 2"),
    ("classify", "good\tx\nbad\ty\tz\n", "line 2 of .* has 3 columns"),
    ("classify", "good\tx\nbad\t \n", "line 2 of .*: a text is empty$"),
    ("classify", "good\tx\n\ty\n", "line 2 of .*: a text is empty$"),
    ("classify", "good\tx\n\n", "line 2 of .* has 1 column"),
    ("classify", b"good\tx\nbad\t\xff\n", "line 2 of .* is not UTF-8"),
    ("classify", "good\tx\n", "needs two labels or more; found 1"),
    ("classify", "", "there are no examples for train"),
    (
        "classify",
        "".join(f"label {n}\tx\n" for n in range(40)),
        "40 different labels.*is it the right column",
    ),
    ("pairs", "a\tx\ty\nb\tx\n", r"line 2 of .* has 2 columns; .* \(a pair needs both"),
    ("pairs", "a\tx\ty\nb\tx\t\n", "line 2 of .* holds half a pair"),
    ("tag", "the O\nanimal\n", "line 2 of .* has 1 column; the lines before have 2"),
    ("tag", "the\n", "line 1 of .* has 1 column; a word and its tag are wanted"),
    ("tag", "the O\nanimal x B-a\n", "line 2 of .* has 3 columns; the lines before have 2"),
    ("answer", "[]", "is not as SQuAD's files are"),
    ("answer", "{", "is no JSON"),
    ("answer", SQUAD % '{"question": "who", "id": "q7"}', "question 'q7' of .*: answers should be a list"),
    (
        "answer",
        SQUAD % '{"question": "who", "id": "q7", "answers": [{"text": "animal", "answer_start": 3}]}',
        "question 'q7' of .*: the answer 'animal' does not lie at character 3 of the context, .*; it is at 4",
    ),
    (
        "answer",
        SQUAD % '{"question": "who", "answers": [{"text": "cat", "answer_start": 900}]}',
        "question '1' of .*it is not in the context",
    ),
    ("answer", SQUAD % '{"question": " ", "answers": []}', "a text is empty"),
    (
        "answer",
        SQUAD % '{"question": "who", "answers": [{"text": 3}]}',
        "question '1' of .*text should be a valid string",
    ),
]


@pytest.mark.parametrize(("task", "content", "complaint"), BAD, ids=lambda value: str(value)[:30])
def test_what_does_not_fit_is_one_line_with_its_number(
    task: ExampleTask, content: str | bytes, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(SegueError, match=complaint) as caught:
        prepared(tmp_path, task, content, name=FILES[task][0])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"label": "a"}, "line 1 of .* has nothing under 'text'; it has label"),
        ({"label": "a", "text": 3}, "line 1 of .*: texts"),
        ({"label": ["a"], "text": "x"}, "line 1 of .*: label"),
        ({"label": "a", "text": "\ud800"}, "half a character"),
        ([], "has nothing under 'label'; it has no names"),
    ],
)
def test_rows_that_do_not_fit(row: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SegueError, match=complaint):
        prepared(tmp_path, "classify", json.dumps(row) + "\n", name="a.jsonl")


def test_a_score_that_is_none_is_refused(tmp_path: Path) -> None:
    for wrong in ("much", "nan", "1e999"):
        with pytest.raises(SegueError, match="line 1 of .*score"):
            prepared(tmp_path, "classify", f"{wrong}\tx\n", score=True, name="a.tsv")


def test_a_label_that_training_does_not_know_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tx\nb\ty\n")
    (tmp_path / "b.tsv").write_text("a\tx\nc\ty\n")
    parts = {
        "valid": read_examples(tmp_path / "b.tsv", "classify"),
        "train": read_examples(tmp_path / "a.tsv", "classify"),
    }
    with pytest.raises(
        SegueError, match="line 2 of .*b.tsv: the label 'c' does not occur in training, which has a, b"
    ):
        prepare_examples(
            parts,
            tmp_path / "out",
            "classify",
            score=False,
            vocabulary=lambda _: wordpiece(tmp_path),
            report=silent,
        )


def test_a_forged_folder_is_refused(tmp_path: Path) -> None:
    folder = prepared(tmp_path, "classify", FILES["classify"][1], name="a.tsv").folder
    rows = (folder / "train.jsonl").read_text()
    (folder / "train.jsonl").write_text(rows.replace("street", "animal"))
    with pytest.raises(SegueError, match="has changed since it was prepared"):
        open_examples(folder)
    for forged, complaint in [
        (rows.replace('"bad"', '"worse"'), "line 2 of .*the label 'worse' does not occur"),
        (rows.replace('"the street"', '"the","street"'), "holds 2 texts"),
        (rows + rows, "holds 4 examples"),
        ("[]\n[]\n", "line 1 of .* should be an object"),
    ]:
        (folder / "train.jsonl").write_text(forged)
        header = json.loads((folder / "examples.json").read_text())
        header["checksums"]["train.jsonl"] = file_checksum(folder / "train.jsonl")
        (folder / "examples.json").write_text(json.dumps(header))
        with pytest.raises(SegueError, match=complaint):
            open_examples(folder).examples("train")
    with pytest.raises(SegueError, match="has no split 'test'; it has train"):
        open_examples(folder).examples("test")


@given(texts=st.lists(st.sampled_from([f"text {n}" for n in range(50)]), max_size=30))
def test_equal_texts_stay_together_and_none_is_lost(texts: list[str]) -> None:
    named = [(str(n), LabelledText(texts=(text,), label="x")) for n, text in enumerate(texts)]
    parts = by_shares(lambda: iter(named), {"valid": 0.3, "test": 0.2})
    read = {split: list(part()) for split, part in parts.items()}
    assert sorted(name for part in read.values() for name, _ in part) == sorted(name for name, _ in named)
    seen = [{example.inputs[0] for _, example in part} for part in read.values()]
    assert all(not one & other for n, one in enumerate(seen) for other in seen[n + 1 :])


@given(length=st.integers(0, 60), room=st.integers(1, 12), data=st.data())
def test_windows_cover_everything_and_each_token_has_the_one_with_most_context(
    length: int, room: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, room))
    cut = windows(length, room, stride)
    assert sorted({token for window in cut for token in window}) == list(range(length))
    assert all(len(window) <= room for window in cut)
    assert len(cut) == 1 or length > room
    assert all(window.start == number * stride for number, window in enumerate(cut))
    for token, owner in enumerate(owners(cut)):
        context = [min(token - one.start, one.stop - 1 - token) if token in one else -1 for one in cut]
        assert context[owner] == max(context)


def test_targets_lie_where_the_labels_are(tmp_path: Path) -> None:
    tokenizer = wordpiece(tmp_path)
    (text,) = labelled_texts([LabelledText(texts=("the animal",), label="b")], ("a", "b"), tokenizer, 9)
    assert (text.pieces.ids, text.target) == ([2, 5, 6, 3], 1)
    sentence = TaggedWords(words=("untired", "\u200d\ufe0f", "animal"), tags=("B-x", "O", "I-x"))
    (tagged,) = labelled_sentences([sentence], ("O", "B-x", "I-x"), tokenizer, 9)
    assert tokenizer.tokens(tagged.pieces.ids)[1:5] == ["un", "##tir", "##ed", "animal"]
    assert tagged.target == [-100, 1, -100, -100, 2, -100]
    context = "the untired animal did not cross the street ."
    question = Question(
        name="q",
        question="the street",
        context=context,
        answers=({"text": "untired animal", "answer_start": 4},),
    )
    (whole,) = labelled_questions([question], tokenizer, 20)
    assert tokenizer.tokens(whole.pieces.ids[slice(whole.target[0], whole.target[1] + 1)]) == [  # type: ignore[index]
        "un", "##tir", "##ed", "animal",
    ]  # fmt: skip
    some = labelled_questions([question], tokenizer, 14)  # the answer has four pieces of the nine in a window
    assert [one.target == [0, 0] for one in some].count(True) == 1
    for one in some:
        if one.target != [0, 0]:
            assert tokenizer.tokens(one.pieces.ids[slice(one.target[0], one.target[1] + 1)])[-1] == "animal"  # type: ignore[index]
        assert len(one.pieces.ids) <= 14
