"""How much context models use: windows hold what they should, and noise alone is no gain by means."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from runs import make_corpus
from segue.config import Reach, XLConfig
from segue.errors import InputError
from segue.lab import context_losses as reading
from segue.lab import recl, recl_words, tuning
from segue.lab.context_groups import SHARES, SLOWER, Plan, curve, group_lengths, tuned_member
from segue.lab.context_lengths import (
    estimate,
    hard_positions,
    mean_length,
    paper_gains,
    paper_length,
    resampled,
)
from segue.lab.experiment import Setting, Table, Verdict
from segue.lab.recl import GROUPS
from segue.lab.recl_page import tell
from segue.lab.record import measured
from segue.lab.report import write_report
from segue.lab.trained import Budget
from segue.nn.models import build_language_model
from segue.recipe import Recipe
from segue.text.corpus import Stream, open_corpus

CONTEXTS = (8, 12, 16, 24, 32)
TINY = Budget(width=8, layers=1, heads=2, lanes=4, segment=8, steps=2, scored=1000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("contexts"), documents=12, words=120)


@pytest.fixture(scope="module")
def stream(corpus: Path) -> Stream:
    return open_corpus(corpus).stream("train")


def test_the_ladder_has_two_rungs_for_each_doubling() -> None:
    assert reading.ladder(100) == (8, 12, 16, 24, 32, 48, 64, 96)
    assert reading.ladder(1024)[-1] == 1024


def test_blocks_have_their_context_in_their_own_document_and_do_not_overlap(stream: Stream) -> None:
    blocks = reading.choose_blocks(stream, 1000, 16, 100, seed=0)
    places = blocks.flatten().numpy()
    document = stream.starts[np.searchsorted(stream.starts, places, side="right") - 1]
    assert (places - document >= 100).all()
    assert len(set(places.tolist())) == len(places)
    with pytest.raises(InputError, match="the text is too short: its longest document has"):
        reading.choose_blocks(stream, 4, 16, 10_000, seed=0)


@pytest.mark.parametrize("context", [8, 24, 64])
def test_a_loss_is_that_of_a_model_that_reads_the_last_tokens_alone(context: int, stream: Stream) -> None:
    torch.manual_seed(0)
    model = build_language_model(XLConfig(vocab=256, width=8, heads=2, layers=2)).double().eval()
    blocks, reach = reading.choose_blocks(stream, 3, 8, 64, seed=1), Reach(memory=0, clamp=20)
    nats = reading.context_losses(model, reach, stream, blocks, context)
    count = reading.scored_targets(context, 8)
    assert count == {8: 1, 24: 2, 64: 8}[context]
    for number, place in enumerate(blocks.flatten().tolist()):
        alone = context - (count - 1 - number % count)  # an eighth fewer at most
        assert 7 / 8 * context <= alone <= context
        ids = torch.from_numpy(stream.ids[place - alone : place + 1].astype(np.int64))[None]
        hidden, _ = model(ids[:, :-1], model.start(reach=reach))
        assert_close(nats[number], model.nats(hidden[:, -1], ids[:, -1])[0])


def test_a_control_reads_its_own_last_tokens_behind_text_from_elsewhere(stream: Stream) -> None:
    torch.manual_seed(0)
    model = build_language_model(XLConfig(vocab=256, width=8, heads=2, layers=2)).double().eval()
    blocks, reach = reading.choose_blocks(stream, 3, 8, 60, seed=1), Reach(memory=0, clamp=20)
    own, context = 24, 48
    nats = reading.control_losses(model, reach, stream, blocks, context, own=own, seed=3)
    places = np.random.default_rng([3, context]).integers(context - own, len(stream.ids), size=3)
    count = reading.scored_targets(own, 8)
    assert count == 2
    for number, place in enumerate(blocks.flatten().tolist()):
        foreign = stream.ids[places[number // 8] - (context - own) :][: context - own]
        mine = stream.ids[place - (own - (count - 1 - number % count)) : place + 1]
        ids = torch.from_numpy(np.concatenate([foreign, mine]).astype(np.int64))[None]
        hidden, _ = model(ids[:, :-1], model.start(reach=reach))
        assert_close(nats[number], model.nats(hidden[:, -1], ids[:, -1])[0])


@pytest.mark.parametrize("context", [8, 24])
def test_a_control_with_enough_own_tokens_reads_the_text_itself(context: int, stream: Stream) -> None:
    torch.manual_seed(0)
    model = build_language_model(XLConfig(vocab=256, width=8, heads=2, layers=1)).double().eval()
    given = (model, Reach(memory=0), stream, reading.choose_blocks(stream, 3, 4, 40, seed=1), context)
    assert torch.equal(reading.control_losses(*given, own=24), reading.context_losses(*given))


def test_noise_gains_by_minima_and_not_by_means() -> None:
    """The artefact: losses that fluctuate around the same mean, whatever the context."""
    draw = torch.Generator().manual_seed(0)
    noise = 3 + 0.3 * torch.randn(len(CONTEXTS), 20_000, dtype=torch.float64, generator=draw)
    losses = {"noisy": noise, "still": torch.full_like(noise, 3.5)}
    group = list(losses)
    for share in (0.1, 0.5, 1.0):
        assert paper_length(losses, group, "noisy", share, CONTEXTS) == CONTEXTS[-1]
    assert min(paper_gains(losses, group, "noisy", 1.0)) > 0.1
    for share in (0.5, 1.0):
        means = noise[1:, hard_positions(losses, group, share)].mean(
            dim=1
        )  # chosen at the first length alone
        assert mean_length(means, CONTEXTS[1:]) == CONTEXTS[1]


def test_by_means_a_context_counts_while_any_longer_one_gains() -> None:
    assert (
        mean_length(torch.tensor([3.0, 2.995, 2.98, 2.979, 2.979]), CONTEXTS) == 16
    )  # two small steps make a gain
    assert mean_length(torch.tensor([3.0, 3.1, 3.1, 3.0, 2.999]), CONTEXTS) == 8
    assert mean_length(torch.tensor([3.0, 2.9, 2.8, 2.7, 2.6]), CONTEXTS) == 32


def test_resampled_texts_are_made_of_whole_blocks() -> None:
    texts = resampled(5, 3, 40, seed=0)
    assert texts.shape == (40, 15)
    assert (texts.view(40, 5, 3).diff(dim=2) == 1).all()
    assert (texts.view(40, 5, 3)[..., 0] % 3 == 0).all()
    assert set(texts.flatten().tolist()) == set(range(15))
    assert estimate(7.0, list(range(41))) == (1.0, 7.0, 39.0)


@pytest.mark.parametrize(("name", "most"), [("GCNN", 46), ("TCN", 125), ("vanilla Transformer", 16)])
def test_ceilings_are_those_of_the_models(name: str, most: int, corpus: Path, tmp_path: Path) -> None:
    recipe = recl.recipe_of(Setting(corpus, tmp_path, quick=True), name, TINY)
    assert reading.ceiling(recipe) == most
    for free in ("Transformer-XL", "QRNN", "LSTM", "XL without recurrence"):
        assert reading.ceiling(recl.recipe_of(Setting(corpus, tmp_path, quick=True), free, TINY)) is None


def test_the_context_that_models_of_words_use_from_measurement_to_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(tmp_path / "bytes", documents=120, words=60)
    words = make_corpus(tmp_path / "words", documents=240, words=60, tokenizer="words")
    monkeypatch.setattr(recl_words, "QUICK", recl.Sizes(TINY, longest=32, blocks=4, size=4, resamples=3))
    setting = Setting(corpus, tmp_path, quick=True, words=words)
    record, _ = measured(recl_words.EXPERIMENT, setting, "")
    assert set(record.results["models"]) == {"Transformer-XL", "LSTM", "vanilla Transformer"}
    assert all(model["score"] > 1 for model in record.results["models"].values())  # perplexity
    page, notes = write_report(tmp_path, draw=["recl_words"])
    assert "Tokens are words." in page.read_text()
    assert (tmp_path / "pictures" / "recl_words.png").is_file()
    assert notes == []


@pytest.mark.parametrize("recipe_of", [recl.recipe_of, recl_words.recipe_of])
@pytest.mark.parametrize("name", ["Transformer-XL", "vanilla Transformer"])
def test_all_transformers_have_one_attention_length_in_training(
    recipe_of: Callable[[Setting, str, Budget], Recipe], name: str, corpus: Path, tmp_path: Path
) -> None:
    train = recipe_of(Setting(corpus, tmp_path), name, TINY).train
    assert train.lanes * train.segment == TINY.lanes * TINY.segment
    assert train.segment + train.memory == 2 * TINY.segment


def test_a_model_trains_more_slowly_than_in_its_short_trials(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "scored_tokens", lambda *_: 200)
    plan = Plan(recl.Sizes(TINY, longest=32, blocks=4, size=4, resamples=3), GROUPS, recl.recipe_of)
    tuned = tuned_member(Setting(corpus, tmp_path), plan, "LSTM").tuning
    best = min(tuned.tries, key=lambda one: float(one["bits_per_byte"]))
    assert len(tuned.tries) == 2
    assert tuned.recipe.train.learning_rate == SLOWER * best["learning_rate"]


CONTROLS = {f"control: {own} own tokens": own for own in (12, 24)}


def figures(**useful: int) -> dict[str, Any]:
    """Results as measured, of models that use so many tokens and no more; controls use their own tokens at most."""
    draw = torch.Generator().manual_seed(0)
    names = list(dict.fromkeys(name for group in GROUPS.values() for name in group))
    positions = 3 + torch.rand(64, dtype=torch.float64, generator=draw)
    uses = {name: useful.get(name[:4], 8) for name in names}
    uses |= {
        name: min(own, uses["Transformer-XL"]) + useful.get("fooled", 0) for name, own in CONTROLS.items()
    }
    losses = {
        name: torch.stack([positions - 0.04 * min(c, most) for c in CONTEXTS]) for name, most in uses.items()
    }
    texts = resampled(8, 8, 10, seed=0)
    model = {"ceiling": None, "score": 1.0, "segment": 8, "learning_rate": 0.1, "parameters": 1}
    return {
        "contexts": list(CONTEXTS),
        "shares": list(SHARES),
        **dict.fromkeys(("positions", "blocks", "resamples", "tokens", "scored"), 1),
        "segment": 16,
        "slower": 0.4,
        "tokenizer": "bytes",
        "unit": "bits_per_byte",
        "controls": CONTROLS,
        "models": dict.fromkeys(names, model),
        "curves": {name: curve(nats, texts) for name, nats in losses.items()},
        "groups": {
            label: group_lengths(losses, group, list(CONTROLS), texts, CONTEXTS, lambda *_: None)
            for label, group in GROUPS.items()
        },
    }


def test_a_longer_context_is_shown_only_if_it_is_longer_than_the_others_and_the_controls() -> None:
    def shown(**useful: int) -> set[bool]:
        return {block.shown for block in tell(figures(**useful)) if isinstance(block, Verdict)}

    assert shown(Tran=24) == {True}
    assert shown() == {False}
    assert shown(QRNN=24, LSTM=24, vani=24, **{"XL w": 24}) == {False}
    assert shown(Tran=24, fooled=12) == {False}
    assert shown(Tran=32, QRNN=16, LSTM=16, vani=16, **{"XL w": 16}) == {True}
    assert shown(Tran=32, QRNN=16, LSTM=16, vani=16, **{"XL w": 16}, fooled=8) == {False}


def test_the_longest_length_that_still_gains_is_at_least_that() -> None:
    told = tell(figures(Tran=64))
    assert any("at least 32" in block.because for block in told if isinstance(block, Verdict))


def test_the_page_says_where_a_memory_makes_a_cold_start_worse() -> None:
    def said(results: dict[str, Any]) -> bool:
        return any(
            "hardly ever reads from an empty state" in block
            for block in tell(results)
            if isinstance(block, str)
        )

    results = figures(Tran=24)
    assert not said(results)
    results["curves"]["Transformer-XL"]["nats"][0] += 0.1
    assert said(results)


def test_the_page_tells_what_longer_contexts_gain() -> None:
    (models,) = (
        block
        for block in tell(figures(Tran=24))
        if isinstance(block, Table) and "gain beyond 8 tokens" in block.head
    )
    gains = {row[0]: row[list(models.head).index("gain beyond 8 tokens")] for row in models.rows}
    assert gains["Transformer-XL"] == "47.3%"  # 16 tokens of 0.04 nats each
    assert gains["LSTM"] == "0.0%"


def test_the_page_says_where_foreign_text_helps_too() -> None:
    def said(**useful: int) -> bool:
        return any(
            "With foreign text, too" in block for block in tell(figures(**useful)) if isinstance(block, str)
        )

    assert said(Tran=24, fooled=4)
    assert not said(Tran=24)
