"""Translators with windows, Linformer or Nyström go through the same commands as any other."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from segue.checkpoint import checkpoints, load_translator
from segue.cli import app
from segue.config import Seq2SeqConfig, Translating
from segue.errors import SegueError
from segue.infer.translate import translate
from segue.progress import silent
from segue.recipe import PairTrainConfig, TranslationRecipe, recipe_toml
from segue.text.pairs import PairsConfig, prepare_pairs

KINDS = {
    "window": {"window": 4, "global_tokens": 1, "decoder_span": 5, "encoding": "xl"},
    "linformer": {"attention": "linformer", "rank": 6, "share": "heads", "max_source": 9},
    "nystrom": {"attention": "nystrom", "rank": 4, "output_bias": True},
}


def told(*words: object, code: int = 0) -> str:
    """In this process: starting a new one would take longer than the command itself."""
    result = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    if code:
        assert isinstance(result.exception, SegueError)
        return str(result.exception)
    assert result.exit_code == 0, result.exception
    return result.stdout


def pairs(count: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Numbers, and the same in capitals of the alphabet."""
    texts = [f"{(number * 7919 + seed) % 4096:04o}" for number in range(count)]
    return [(text.encode(), "".join("ABCDEFGH"[int(digit)] for digit in text).encode()) for text in texts]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "data"
    sizes = {"train": 200, "valid": 20, "test": 40}
    parts = {
        name: lambda count=count, seed=seed: iter(pairs(count, seed))
        for seed, (name, count) in enumerate(sizes.items())
    }
    prepare_pairs(parts, folder, PairsConfig(size=257), silent)
    return folder


def recipe(kind: str, **train: object) -> TranslationRecipe:
    shape = {
        "vocab": 259,
        "width": 16,
        "heads": 2,
        "feedforward": 16,
        "encoder_layers": 2,
        "decoder_layers": 1,
    }
    settings = {"steps": 6, "tokens": 200, "learning_rate": 1e-2, "clip": 1.0, **train}
    return TranslationRecipe(
        model=Seq2SeqConfig(**shape, dropout=0.02, **KINDS[kind]),
        train=PairTrainConfig(**settings),
        translating=Translating(beam_width=2, longest=12),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_train_evaluate_translate(kind: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        recipe_toml(recipe(kind, steps=120, tokens=1000, validate_every=60, optimizer="muon", smoothing=0.0))
    )
    run = tmp_path / "run"
    told("train", tmp_path / "recipe.toml", "--data", data, "-o", run, "--threads", 1)
    judged = json.loads(told("eval", run, "--data", data, "--split", "test", "--json"))
    assert judged["perplexity"] < 5  # a model that does not read the source: 8 ** (4 / 5) = 5.3
    (tmp_path / "lines").write_text("0123\n\n4567\n")
    lines = told("translate", run, tmp_path / "lines", "--attention", tmp_path / "page.html").splitlines()
    assert len(lines) == 3
    assert lines[0]
    assert "decoder to encoder" in (tmp_path / "page.html").read_text()
    assert next(iter(KINDS[kind])) in told("info", run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_with_the_same_bits(kind: str, data: Path, tmp_path: Path) -> None:
    whole = segue.train(recipe(kind, save_every=1, keep=99), data, tmp_path / "whole")
    part = tmp_path / "part"
    shutil.copytree(whole, part)
    for folder in checkpoints(part)[3:]:
        shutil.rmtree(folder)
    segue.resume(part)
    weights = [(checkpoints(run)[-1] / "model.safetensors").read_bytes() for run in (whole, part)]
    assert weights[0] == weights[1]


def test_sources_beyond_linformers_columns(data: Path, tmp_path: Path) -> None:
    """In training they are refused before it begins; in translation their ends are not read, and it is said."""
    run = segue.train(recipe("linformer"), data, tmp_path / "run")
    translator = load_translator(run)
    assert [texts[0].cut for texts in translate(translator, [b"12345678", b"123456789"])] == [False, True]
    narrow = recipe("linformer").model_copy(
        update={"model": recipe("linformer").model.model_copy(update={"max_source": 4, "rank": 4})}
    )
    with pytest.raises(
        SegueError, match="a source of train has 5 tokens with its end, and model.max_source is 4"
    ):
        segue.train(narrow, data, tmp_path / "narrow")
    (tmp_path / "long").write_text("1" * 40 + "\n")
    told("translate", run, tmp_path / "long", "--attention", tmp_path / "page.html")
    told("info", "multi30k-linformer")
    assert "window 8 + 1" in told("info", "multi30k-window")
