"""Pre-training by command: prepare, train, interrupt and resume, eval, fill, embed, info; and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from encoder_runs import masked_recipe
from encoders import small_bert
from runs import make_corpus, write_texts
from segue.cli import app
from segue.errors import SegueError
from segue.recipe import recipe_toml
from segue.text.tokenizer import load_tokenizer


def run(*words: object, given: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=given)


def told(*words: object, given: str | None = None) -> str:
    done = run(*words, given=given)
    assert done.exit_code == 0, done.exception
    return done.stdout


def refused(*words: object) -> str:
    done = run(*words)
    assert isinstance(done.exception, SegueError), done.stdout
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    write_texts(folder / "texts", 30)
    (folder / "recipe.toml").write_text(recipe_toml(masked_recipe(steps=8, task={"next_sentence": True})))
    said = told(
        "prepare", folder / "texts", "--tokenizer", "wordpiece", "--vocab", 72, "-o", folder / "data",
        "--valid", 0.1, "--test", 0.1,
    )  # fmt: skip
    assert "segue train bert-cpu --data" in said
    told("train", folder / "recipe.toml", "--data", folder / "data", "-o", folder / "run")
    return folder


def test_eval_tells_perplexity_and_accuracy(folder: Path) -> None:
    said = told("eval", folder / "run", "--split", "valid")
    assert said.startswith("valid: masked perplexity")
    assert "accuracy" in said
    assert "pairs" in said
    facts = json.loads(told("eval", folder / "run", "--json"))
    assert 1 < facts["perplexity"] < 200
    assert np.isclose(facts["perplexity"], np.exp(facts["nats"]))
    assert 0.1 < facts["masked"] / facts["tokens"] < 0.2
    assert 0 <= facts["next_sentence_accuracy"] <= 1
    fewer = json.loads(told("eval", folder / "run", "--json", "--limit", 30))
    assert 0 < fewer["tokens"] < facts["tokens"]


def test_a_run_is_an_encoder_for_every_command(folder: Path) -> None:
    assert told("fill", folder / "run", "--top", 2, given="the [MASK] came home\n").startswith("1\t1\t")
    assert "masked" in told("info", folder / "run")
    assert len(told("embed", folder / "run", "--jsonl", given="the sea\na ship\n").splitlines()) == 2
    assert "train.batch" in told("info", "bert-cpu")


def test_from_a_bundle_and_from_a_foreign_folder(folder: Path, tmp_path: Path) -> None:
    """The data must be in the pieces of what the run begins with; its table may have idle rows."""
    recipe, data, once = folder / "recipe.toml", folder / "data", ("--set", "train.steps=1")
    done = run("train", recipe, "--data", data, "--from", folder / "run", "-o", tmp_path / "on", *once)
    assert done.exit_code == 0, done.exception
    assert "note: the body and the head of masked words begin with the weights given" in done.output
    bert = small_bert(tmp_path / "bert")
    told("import", bert, "-o", tmp_path / "bundle")
    pieces = tmp_path / "bundle" / "tokenizer.json"
    told("prepare", folder / "texts", "--tokenizer-file", pieces, "-o", tmp_path / "data")
    shorter = (*once, "--set", "reading.max_length=14")
    done = run(
        "train", recipe, "--data", tmp_path / "data", "--from", bert, "-o", tmp_path / "foreign", *shorter
    )
    assert done.exit_code == 0, done.exception
    said = refused("train", recipe, "--data", data, "--from", bert, "-o", tmp_path / "not", *shorter)
    assert "the model has 31 symbols" in said


def test_what_does_not_fit_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    letters = make_corpus(tmp_path / "words", tokenizer="words")
    assert "does not know [CLS]" in refused("train", "bert-cpu", "--data", letters, "-o", tmp_path / "run")
    data = folder / "data"
    assert "max_length 129 is more than the encoder's 128 positions" in refused(
        "train", "bert-cpu", "--data", data, "-o", tmp_path / "run", "--set", "reading.max_length=129"
    )
    assert "prepared with another tokenizer" in refused("eval", folder / "run", "--data", letters)
    assert "has no split 'none'" in refused("eval", folder / "run", "--split", "none")
    assert "is no language model" in refused("eval", folder / "run", "--ngrams", 3)
    assert "--memory does not apply" in refused("eval", folder / "run", "--memory", 0)
    assert "cased belongs to the tokenizer 'wordpiece'" in refused(
        "prepare", folder / "texts", "--cased", "-o", tmp_path / "x"
    )
    assert "WordPiece needs at least" in refused(
        "prepare", folder / "texts", "--tokenizer", "wordpiece", "--vocab", 7, "-o", tmp_path / "x"
    )


@pytest.mark.parametrize(("option", "known"), [((), "sea"), (("--cased",), "Sea")])
def test_pieces_are_lower_case_unless_they_are_cased(tmp_path: Path, option: tuple[str], known: str) -> None:
    (tmp_path / "text.txt").write_text("Sea Sea Sea Café Café Café " * 50 + "漢\n", encoding="utf-8")
    told(
        "prepare", tmp_path / "text.txt", "--tokenizer", "wordpiece", "--vocab", 60, *option, "-o", tmp_path / "data",
        "--valid", 0, "--test", 0,
    )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path / "data" / "tokenizer.json")
    assert tokenizer.id_of(known) is not None
    assert [tokenizer.id_of(symbol) for symbol in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [
        0,
        1,
        2,
        3,
        4,
    ]
    ids = tokenizer.encode("Sea CAFÉ".encode())
    assert all(0 <= number < tokenizer.size for number in ids)
    assert tokenizer.decode(tokenizer.encode(b"Sea Sea")).decode() == f"{known} {known}"
