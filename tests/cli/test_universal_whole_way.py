"""Universal Transformers go through the same commands and calls as all others, and tell how many steps they take."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import segue
from segue.checkpoint import checkpoints
from segue.cli import app
from segue.errors import SegueError
from segue.infer.evaluate import evaluate
from segue.recipe import Recipe, TranslationRecipe, recipe_toml
from segue.text.corpus import open_corpus
from segue.text.lanes import Lanes
from segue.text.pair_batches import batch_of
from segue.text.pairs import open_pairs
from segue.training.objective import (
    Objective,
    PairObjective,
    PonderObjective,
    PonderPairObjective,
)
from segue.training.run import read_log

SHAPE = {"width": 12, "heads": 2, "steps": 3, "halting": "act", "halt_bias": -0.5, "dropout": 0.1}


def recipe(model: dict[str, object] | None = None, **train: object) -> Recipe:
    """Dropout is on, so that the random state must be restored too."""
    values = {"lanes": 4, "segment": 7, "memory": 9, "steps": 8, "learning_rate": 1e-2, "ponder": 0.1}
    return Recipe(
        model={"kind": "universal", "vocab": 256, **SHAPE, **(model or {})},
        train={**values, **train},
        reading={"segment": 16, "reach": {"memory": 16}},
    )


def pair_recipe(pairs: Path, model: dict[str, object] | None = None, **train: object) -> TranslationRecipe:
    values = {"steps": 8, "tokens": 200, "learning_rate": 1e-2, "ponder": 0.1, "validate_every": 4}
    header = open_pairs(pairs).header
    shape = {"kind": "universal-seq2seq", "vocab": header.vocab, "source_vocab": header.source_vocab, **SHAPE}
    return TranslationRecipe(
        model={**shape, **(model or {})},
        train={**values, **train},
        translating={"longest": 30},
    )


def told(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    if code:
        assert isinstance(result.exception, SegueError)
        return str(result.exception)
    assert result.exit_code == 0, result.exception
    return result.stdout


def resumed_equals_whole(chosen: Recipe | TranslationRecipe, data: Path, folder: Path) -> None:
    whole = segue.train(chosen, data, folder / "whole")
    part = folder / "part"
    shutil.copytree(whole, part)
    for checkpoint in checkpoints(part)[3:]:
        shutil.rmtree(checkpoint)
    segue.resume(part)
    first, last, again = (
        (place / "model.safetensors").read_bytes()
        for place in (checkpoints(whole)[0], checkpoints(whole)[-1], checkpoints(part)[-1])
    )
    assert last == again != first


@pytest.mark.parametrize(
    ("model", "train"),
    [
        ({}, {"accumulate": 2}),
        ({"halting": "listing"}, {"optimizer": "muon"}),
        ({"halting": "none"}, {"ponder": 0}),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(
    model: dict[str, object], train: dict[str, object], corpus: Path, tmp_path: Path
) -> None:
    resumed_equals_whole(recipe(model, save_every=1, keep=99, **train), corpus, tmp_path)


def test_a_resumed_translator_ends_with_the_same_bits(pairs: Path, tmp_path: Path) -> None:
    resumed_equals_whole(pair_recipe(pairs, save_every=1, keep=99, accumulate=2), pairs, tmp_path)


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("universal")
    chosen = recipe(steps=80, lanes=8, segment=32, validate_every=40, validate_tokens=300, ponder=0.01)
    (folder / "recipe.toml").write_text(recipe_toml(chosen))
    printed = told("train", folder / "recipe.toml", "--data", corpus, "-o", folder / "run")
    assert re.search(r"step 80: validation .* [123]\.\d\d steps per token", printed)
    return folder / "run"


def test_the_log_has_the_ponder_cost_and_the_mean_steps(trained: Path) -> None:
    events = read_log(trained)
    first = next(event for event in events if event["kind"] == "step")
    assert 0.01 < first["auxiliary"] <= 0.01 * 4
    assert all(1 <= event["mean_steps"] <= 3 for event in events if event["kind"] == "valid")


def test_the_commands(trained: Path, tmp_path: Path) -> None:
    score = json.loads(told("eval", trained, "--json", "--memory", 8))
    assert score["bits_per_byte"] < 4.5
    assert 1 <= score["mean_steps"] <= 3
    assert f"{score['mean_steps']:.2f} steps per token" in told("eval", trained, "--memory", 8)
    lanes = json.loads(told("eval", trained, "--json", "--memory", 8, "--lanes", 3))
    assert lanes["bits_per_byte"] == pytest.approx(score["bits_per_byte"], abs=1e-5)
    assert lanes["mean_steps"] == pytest.approx(score["mean_steps"], abs=0.01)
    words = ["generate", trained, "--prompt", "the sea", "--tokens", 30, "--seed", 1]
    assert told(*words).startswith("the sea")
    assert told(*words) == told(*words)
    (tmp_path / "text").write_text("the sea went out\nand came home\n")
    assert len(told("score", trained, tmp_path / "text").splitlines()) == 2
    assert "universal" in told("info", trained)
    told("eval", trained, "--limit", 50, "--sliding")
    told("eval", trained, "--limit", 50, "--cache", 20)
    assert "UniversalTransformer has no such engine" in told("generate", trained, "--int8", code=1)
    out = ["-o", tmp_path / "out", "--layout", "huggingface"]
    assert "this is a universal model" in told("export", trained, *out, code=1)


def test_a_session_scores_what_evaluation_scores(trained: Path, corpus: Path) -> None:
    bundle, stream = segue.load(trained), open_corpus(corpus).stream("test")
    session = bundle.session()
    text = stream.text(0, 100)
    nats = session.feed(text[:41]) + session.feed(text[41:])
    whole = evaluate(bundle.model, stream, session.reader.reading, limit=99, documents=False)
    assert sum(nats) == pytest.approx(whole.nats, rel=1e-4)
    twin = session.fork()
    assert session.generate(20, seed=3) == twin.generate(20, seed=3)


def page_data(page: Path) -> dict[str, Any]:
    script = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert script is not None
    return dict(json.loads(script.group(1)))


def test_the_attention_page_tells_how_long_each_token_was_thought_about(
    trained: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    told("attention", trained, "--text", "the ship went out", "-o", page)
    views = page_data(page)["views"]
    assert [view["name"] for view in views] == [f"step {number + 1}" for number in range(len(views))]
    steps = views[0]["steps"]
    assert len(steps) == len(views[0]["queries"])
    assert max(steps) == len(views) <= 3
    assert min(steps) >= 1


def test_a_saved_bundle_is_the_same_model(trained: Path, tmp_path: Path) -> None:
    bundle = segue.load(trained)
    bundle.save(tmp_path / "bundle")
    again = segue.load(tmp_path / "bundle")
    assert_close(dict(again.model.state_dict()), dict(bundle.model.state_dict()), rtol=0, atol=0)
    assert again.model.config == bundle.model.config


def test_a_translator_goes_the_whole_way(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(recipe_toml(pair_recipe(pairs)))
    run = tmp_path / "run"
    printed = told("train", tmp_path / "recipe.toml", "--data", pairs, "-o", run)
    assert re.search(r"[123]\.\d\d steps per token of the source, [123]\.\d\d of the target", printed)
    assert "steps per token of the source" in told("eval", run, "--split", "valid")
    facts = json.loads(told("eval", run, "--split", "valid", "--json"))
    assert 1 <= facts["source_steps"] <= 3
    assert 1 <= facts["target_steps"] <= 3
    (tmp_path / "text").write_text("the sea\na ship\n")
    assert len(told("translate", run, tmp_path / "text").splitlines()) == 2
    page = tmp_path / "page.html"
    told("attention", run, "--text", "the sea", "-o", page)
    views = page_data(page)["views"]
    assert {"encoder, step 1", "decoder, step 1", "decoder to encoder, step 1"} <= {
        view["name"] for view in views
    }
    assert all(len(view["steps"]) == len(view["queries"]) for view in views)


def test_ponder_is_refused_where_nothing_halts(pairs: Path) -> None:
    for chosen in (
        lambda: recipe({"halting": "none"}),
        lambda: pair_recipe(pairs, {"halting": "none"}),
    ):
        with pytest.raises(SegueError, match="without halting does not choose them; leave it out") as error:
            chosen()
        assert "\n" not in str(error.value)
    values = recipe().model_dump(mode="json")
    values["model"] = {"kind": "xl", "vocab": 256}
    with pytest.raises(SegueError, match="'xl' does not choose them; leave it out"):
        Recipe(**values)


def test_sharding_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SegueError, match="no blocks to share out"):
        segue.train(recipe(sharded=True), corpus, tmp_path / "run")


def test_the_objectives_add_the_weighted_mean_cost_of_real_tokens(corpus: Path, pairs: Path) -> None:
    """In evaluation mode, so that the model can be asked for the cost once more."""
    torch.manual_seed(0)
    chosen = recipe()
    model = segue.UniversalTransformer(chosen.model).eval()
    memory = model.start(lanes=4, reach=chosen.train.reach)
    segment = Lanes(open_corpus(corpus).stream("train"), 4).segment(0, 7)
    nats, _, auxiliary = PonderObjective(model, 0.3)(segment, memory)
    assert_close(nats, Objective(model)(segment, memory).nats)
    _, _, (steps, remainder) = model.pondered(segment.tokens, memory, starts=segment.starts)
    assert_close(auxiliary, 0.3 * (steps + remainder).mean())
    translator = segue.UniversalSeq2Seq(pair_recipe(pairs).model).eval()
    batch = batch_of(open_pairs(pairs), torch.arange(5).numpy())
    nats, _, auxiliary = PonderPairObjective(translator, 0.1, 0.3)(batch)
    assert_close(nats, PairObjective(translator, 0.1)(batch).nats)
    started = translator.start(batch.source, batch.source_lengths)
    _, _, theirs = translator.pondered(batch.decoder_input, started, lengths=batch.target_lengths)
    tokens = int(batch.source_lengths.sum() + batch.target_lengths.sum())
    both = sum((part.steps + part.remainder).sum() for part in (started.pondering, theirs))
    assert_close(auxiliary, 0.3 * both / tokens)
