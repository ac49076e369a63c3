"""From a file of examples to predictions by command: prepare, train, evaluate, classify, tag, answer."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from encoders import PIECES, small_encoder
from segue.checkpoint import checkpoints, load_encoder_bundle, read_tensors
from segue.cli import app
from segue.config import HeadConfig
from segue.errors import SegueError

WORDS = "the did not cross street .".split()  # noqa: SIM905
TINY = {"width": 32, "layers": 1, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}


def run(*words: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], input=given, env={"SEGUE_THREADS": "1"})


def done(*words: object, given: str | bytes | None = None) -> str:
    ended = run(*words, given=given)
    assert ended.exit_code == 0, ended.exception or ended.stderr
    return str(ended.stdout)


def refused(*words: object, given: str | bytes | None = None) -> str:
    ended = run(*words, given=given)
    assert isinstance(ended.exception, SegueError), ended.exception
    assert "\n" not in str(ended.exception)
    return str(ended.exception)


def examples(task: str, count: int, seed: int) -> str:
    """Easy ones: texts with or without an animal, pairs that begin alike, animals to tag and to find."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randint(3, 7))
        place = draw.randrange(len(words))
        if task == "classify":
            rows.append(
                "\t".join(["with" if number % 2 else "without", " ".join(words + ["animal"] * (number % 2))])
            )
        elif task == "pairs":
            rows.append(
                "\t".join([str(5 * (number % 2)), " ".join(words), "animal" if number % 2 else "the"])
            )
        elif task == "tag":
            words[place] = "animal"
            rows.append("".join(f"{word}\t{'B-x' if word == 'animal' else 'O'}\n" for word in words))
        else:
            words[place] = "animal"
            context = " ".join(words)
            answers = [{"text": "animal", "answer_start": context.index("animal")}]
            rows.append(json.dumps({"question": "the", "context": context, "answers": answers}))
    return "\n".join(rows) + "\n"


def prepared(folder: Path, task: str, *options: str) -> Path:
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    kind = {"tag": "conll", "answer": "jsonl"}.get(task, "tsv")
    for name, count in (("train", 160), ("valid", 40)):
        (folder / f"{name}.{kind}").write_text(examples(task, count, len(name)))
    shown = done(
        *("prepare-examples", folder / f"train.{kind}", "--valid", folder / f"valid.{kind}", "--task", task),
        *("-o", folder / "data", "--tokenizer-file", folder / "vocab.txt", *options),
    )
    assert "160 examples" in shown
    assert f"segue train {task}-cpu" in shown
    return folder / "data"


def trained(folder: Path, task: str, *options: str) -> Path:
    settings = {**{f"model.{name}": value for name, value in TINY.items()}, "reading.max_length": 24}
    settings |= {
        "train.steps": 60,
        "train.warmup": 5,
        "train.learning_rate": 0.004,
        "train.validate_every": 30,
    }
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    shown = done("train", f"{task}-cpu", "--data", folder / "data", "-o", folder / "run", *changes, *options)
    assert "step 60: validation" in shown
    return folder / "run"


def test_classify(tmp_path: Path) -> None:
    prepared(tmp_path, "classify")
    folder = trained(tmp_path, "classify")
    figures = json.loads(done("eval", folder, "--split", "valid", "--json"))
    assert figures["accuracy"] > 0.95
    assert sum(map(sum, figures["confusion"])) == 40
    pytest.importorskip("matplotlib", reason="the viz extra is not installed")
    shown = done("eval", folder, "--split", "valid", "--picture", tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert "macro-F1" in shown
    assert "without" in shown
    wrong = ("eval", folder, "--split", "valid", "--picture", tmp_path / "confusion.gif")
    assert "a picture is a file that ends in .png" in refused(*wrong)
    given = "the animal .\nthe street .\n"
    assert [line.split("\t")[0] for line in done("classify", folder, given=given).splitlines()] == [
        "with",
        "without",
    ]
    rows = done("classify", folder, "--top", 3, "--json", given=given).splitlines()
    first = json.loads(rows[0])
    assert (first["label"], list(first["top"])) == ("with", ["with", "without"])
    assert sum(first["top"].values()) == pytest.approx(1)
    assert "line 2 is empty" in refused("classify", folder, given="x\n\n")
    assert "there are no texts to classify" in refused("classify", folder, given="")
    assert "use segue classify" in refused("tag", folder, given="x\n")
    assert "use segue classify" in refused("answer", folder, "--question", "who", given="x")
    long = run("classify", folder, given="animal " * 50)
    assert "note: line 1 has more than 24 tokens and was cut" in long.stderr


def test_scores_of_pairs(tmp_path: Path) -> None:
    prepared(tmp_path, "pairs", "--score")
    folder = trained(tmp_path, "pairs")
    assert json.loads(done("eval", folder, "--split", "valid", "--json"))["pearson"] > 0.9
    high, low = map(float, done("classify", folder, given="the\tanimal\nthe\tthe\n").splitlines())
    assert high > low + 2
    assert json.loads(done("classify", folder, "--json", given="the\tanimal\n"))["score"] == pytest.approx(
        high, abs=1e-3
    )
    assert "line 1 should be two texts separated by a tab" in refused("classify", folder, given="the\n")
    assert "this encoder has none" in refused(
        "eval", folder, "--split", "valid", "--picture", tmp_path / "x.png"
    )


def test_tag(tmp_path: Path) -> None:
    prepared(tmp_path, "tag")
    folder = trained(tmp_path, "tag")
    assert json.loads(done("eval", folder, "--split", "valid", "--json"))["entity_f1"] > 0.95
    assert done("tag", folder, given="the animal did cross\nthe\n") == (
        "the\tO\nanimal\tB-x\ndid\tO\ncross\tO\n\nthe\tO\n\n"
    )
    row = json.loads(done("tag", folder, "--json", "--split-punctuation", given="the animal.\n"))
    assert row["words"] == ["the", "animal", "."]
    assert row["entities"] == [{"kind": "x", "text": "animal", "first": 1, "last": 1}]
    assert "there are no sentences" in refused("tag", folder, given="")


def test_answer(tmp_path: Path) -> None:
    prepared(tmp_path, "answer")
    folder = trained(tmp_path, "answer")
    assert json.loads(done("eval", folder, "--split", "valid", "--json"))["exact_match"] > 0.8
    (tmp_path / "context.txt").write_text(
        "the street did not\n" * 9 + "cross the animal .\n" + "the street .\n" * 9
    )
    asked = ("answer", folder, "--question", "the", "--context", tmp_path / "context.txt")
    assert done(*asked).rstrip("\n").split("\t")[4] == "animal"
    facts = json.loads(done(*asked, "--top", 3, "--json"))
    assert (facts["answer"], len(facts["spans"])) == ("animal", 3)
    assert done(*asked, "--threshold", 1e6) == "no answer\n"
    assert done(*asked, "--question", "who").startswith("the\t")
    assert "the context is empty" in refused("answer", folder, "--question", "who", given=" ")
    assert "line 2 of the context is not UTF-8" in refused(
        "answer", folder, "--question", "who", given=b"a\n\xff"
    )
    assert "a question is needed" in refused("answer", folder, given="x")
    assert "there is no file" in refused(
        "answer", folder, "--question", "x", "--context", tmp_path / "no.txt"
    )


def test_an_encoder_to_begin_with_brings_its_shape_and_its_tokenizer_also_when_the_run_is_resumed(
    tmp_path: Path,
) -> None:
    prepared(tmp_path, "classify")
    data = tmp_path / "data"
    (tmp_path / "other").mkdir()
    small_encoder(tmp_path / "other", HeadConfig(task="masked"), vocab=20, dropout=0.1).save(
        tmp_path / "bert"
    )
    common = (
        "--data",
        data,
        "--from",
        tmp_path / "bert",
        "--set",
        "train.validate_every=3",
        "--set",
        "train.save_every=3",
    )
    begin = run("train", "classify-cpu", *common, "-o", tmp_path / "whole", "--set", "train.steps=6")
    assert begin.exit_code == 0, begin.exception
    assert "fresh: the head of labels" in begin.stderr
    done(
        "train",
        "classify-cpu",
        *common,
        "-o",
        tmp_path / "half",
        "--set",
        "train.steps=6",
        "--set",
        "train.minutes=1e-9",
    )
    done("train", "--resume", tmp_path / "half", "--set", "train.minutes=60")
    ends = [
        read_tensors(checkpoints(tmp_path / name)[-1] / "model.safetensors") for name in ("whole", "half")
    ]
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[0])
    encoder = load_encoder_bundle(tmp_path / "half")
    assert (encoder.model.config.vocab, encoder.model.config.width, encoder.reading.max_length) == (20, 8, 9)
    assert encoder.tokenizer.json() == load_encoder_bundle(tmp_path / "bert").tokenizer.json()


def test_what_does_not_belong_together_is_one_line(tmp_path: Path) -> None:
    data = prepared(tmp_path, "classify")
    assert "use the preset classify-cpu" in refused(
        "train", "tag-cpu", "--data", data, "-o", tmp_path / "run"
    )
    assert "use the preset classify-cpu" in refused(
        "train", "pairs-cpu", "--data", data, "-o", tmp_path / "run"
    )
    small_encoder(tmp_path, types=1, max_positions=24).save(tmp_path / "bert")
    (tmp_path / "pairs").mkdir()
    pairs = prepared(tmp_path / "pairs", "pairs")
    train = ("train", "pairs-cpu", "--data", pairs, "--from", tmp_path / "bert", "-o", tmp_path / "run")
    assert "this encoder reads no pairs" in refused(*train)
    assert "--score is for --task classify and pairs" in refused(
        "prepare-examples", tmp_path / "train.tsv", "--task", "tag", "--score"
    )
    assert "--columns should name 2 columns" in refused(
        "prepare-examples", tmp_path / "train.tsv", "--task", "classify", "--columns", "text"
    )
    small_encoder(tmp_path).save(tmp_path / "plain")
    assert "has no head" in refused("eval", tmp_path / "plain", "--data", data)
    assert "could not be opened" in refused("prepare-examples", tmp_path / "no.tsv", "--task", "classify")
