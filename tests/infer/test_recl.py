"""RECL: models whose effective context is known by construction, and the paper's formulas by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from typer.testing import CliRunner

import segue
from runs import make_corpus, small_recipe
from segue.cli import app
from segue.config import Reach, Reading, RecurrentConfig, XLConfig
from segue.errors import SegueError
from segue.infer.recl import Member, Plan, choose_places, context_losses, effective_length, relative_lengths
from segue.nn.models import build_language_model
from segue.nn.recurrent import RecurrentModel
from segue.text.corpus import Stream, open_corpus


class Oracle(RecurrentModel):
    """It knows how much it has seen, and is surprised accordingly: less and less up to a known context."""

    def __init__(self, useful: int, best: float) -> None:
        super().__init__(RecurrentConfig(vocab=256, width=2))
        self.useful, self.best = useful, best

    def forward(self, tokens: Tensor, memory, **_):  # type: ignore[no-untyped-def]
        _, after = super().forward(tokens, memory)
        seen = memory.seen[:, None] + torch.arange(1, tokens.size(1) + 1)
        return seen[..., None].double(), after

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        return self.best + (1 - hidden[..., 0].clamp(max=self.useful) / self.useful)


def member(model: RecurrentModel, memory: int = 1, segment: int = 16) -> Member:
    return Member(model, Reading(segment=segment, reach=Reach(memory=memory)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("recl"), documents=20, words=80)


@pytest.fixture(scope="module")
def stream(corpus: Path) -> Stream:
    return open_corpus(corpus).stream("train")


PLAN = Plan(step=10, longest=120, positions=50)


def test_models_that_use_so_much_and_no_more(stream: Stream) -> None:
    """Both end equally good, so each goes on for as long as more context helps it."""
    group = {"far": member(Oracle(60, 0.5)), "near": member(Oracle(30, 0.5))}
    found = relative_lengths(group, stream, PLAN)
    assert found.lengths["near"] == (30, 30, 30)
    assert relative_lengths({"far": group["far"]}, stream, PLAN).lengths["far"] == (60, 60, 60)
    assert found.positions == 50
    assert found.unbounded == ()


def test_a_model_that_only_catches_up_with_the_group_gains_nothing(stream: Stream) -> None:
    """That is what is relative: alone the worse one would go on to 60."""
    group = {"worse": member(Oracle(60, 2.5)), "better": member(Oracle(30, 0.5))}
    found = relative_lengths(group, stream, PLAN)
    assert found.lengths["better"] == (30, 30, 30)
    assert found.lengths["worse"] == (10, 10, 10)


def test_one_that_gains_to_the_end_is_marked_and_a_window_is_a_limit(stream: Stream) -> None:
    group = {"endless": member(Oracle(200, 0.5)), "window": member(Oracle(200, 0.5), memory=0, segment=25)}
    found = relative_lengths(group, stream, PLAN)
    assert found.lengths["endless"] == (120, 120, 120)
    assert found.unbounded == ("endless",)
    assert found.lengths["window"] == (25, 25, 25)


def by_hand(table: np.ndarray, model: int, share: float, step: int, longest: int) -> int:
    """`table[i][c // step - 1][t]`, with the formulas as the paper has them, in plain Python."""
    context = step
    while context + step <= longest:
        rows = table[:, context // step - 1]
        best = [min(column) for column in rows.T]
        count = max(1, round(share * len(best)))
        chosen = sorted(range(len(best)), key=lambda t: best[t], reverse=True)[:count]

        def f(after: int, best: list[float] = best, chosen: list[int] = chosen, count: int = count) -> float:
            return sum(min(best[t], table[model][after // step - 1][t]) for t in chosen) / count

        gain = (math.exp(f(context)) - math.exp(f(context + step))) / math.exp(f(context))
        if gain < 0.01:
            return context
        context += step
    return context


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 1.0]))
def test_the_search_is_the_papers(seed: int, share: float) -> None:
    draw = np.random.default_rng(seed)
    falling = draw.exponential(0.08, size=(3, 6, 20)) * draw.integers(0, 2, size=(3, 6, 1))
    table = 3 + draw.random((3, 1, 20)) - falling.cumsum(axis=1)
    names, plan = ["0", "1", "2"], Plan(step=5, longest=30)

    def losses(name: str, context: int) -> Tensor:
        return torch.from_numpy(table[int(name)][context // 5 - 1])

    for model in range(3):
        found = effective_length(losses, names, str(model), share, plan.contexts)
        assert found == by_hand(table, model, share, 5, 30)


@pytest.mark.parametrize("kind", ["xl", "lstm"])
def test_losses_are_those_of_a_model_that_reads_the_context_alone(kind: str, stream: Stream) -> None:
    torch.manual_seed(0)
    config = (
        XLConfig(vocab=256, width=8, heads=2, layers=2)
        if kind == "xl"
        else RecurrentConfig(vocab=256, width=8)
    )
    model = build_language_model(config).double().eval()
    reading = Reading(segment=7, reach=Reach(memory=40))
    places = choose_places(stream, Plan(step=10, longest=40, positions=9))
    found = context_losses(Member(model, reading), stream, places, 30)
    for place, nats in zip(places.tolist(), found, strict=True):
        ids = torch.from_numpy(stream.ids[place - 30 : place + 1].astype(np.int64))[None]
        hidden, _ = model(ids[:, :-1], model.start(reach=reading.reach))
        assert_close(nats, model.nats(hidden[:, -1], ids[:, -1])[0])


def test_positions_have_their_context_in_their_own_document(stream: Stream) -> None:
    plan = Plan(step=10, longest=150, positions=10_000)
    places = choose_places(stream, plan).numpy()
    document = stream.starts[np.searchsorted(stream.starts, places, side="right") - 1]
    assert (places - document >= 150).all()
    ends = np.append(stream.starts[1:], len(stream.ids))
    assert len(set(places.tolist())) == len(places) == np.maximum(0, ends - stream.starts - 150).sum()


def test_the_command(corpus: Path, tmp_path: Path) -> None:
    first = segue.train(small_recipe(), corpus, tmp_path / "first")
    second = segue.train(small_recipe(seed=1), corpus, tmp_path / "second")
    chars = make_corpus(tmp_path / "chars", tokenizer="characters")
    vocab = open_corpus(chars).header.vocab
    recipe = small_recipe()
    other = recipe.model_copy(update={"model": recipe.model.model_copy(update={"vocab": vocab})})
    strange = segue.train(other, chars, tmp_path / "strange")

    def told(*words: object) -> str:
        result = CliRunner().invoke(app, ["recl", *map(str, words)], env={"SEGUE_THREADS": "1"})
        if isinstance(result.exception, SegueError):
            raise result.exception
        assert result.exit_code == 0, result.exception
        return result.output

    small = ["--step", 10, "--longest", 65, "--positions", 40]
    facts = json.loads(told(first, second, *small, "--json"))
    assert facts["positions"] == 40
    assert facts["longest"] == 60  # what was tried, not what was asked for
    assert facts["lengths"].keys() == {str(first), str(second)}
    assert all(len(lengths) == 3 for lengths in facts["lengths"].values())
    assert "r = 0.1" in told(first, second, *small)
    with pytest.raises(SegueError, match="have different tokenizers"):
        told(first, strange)
    with pytest.raises(SegueError, match="the text is shorter than the context: its longest document has"):
        told(first, second, "--longest", 5000)
    with pytest.raises(SegueError, match="given twice"):
        told(first, first)
