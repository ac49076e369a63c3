"""Experiments that train: their parts work, with models too small to learn anything."""

import random

import pytest
import torch
from torch.testing import assert_close

from runs import make_corpus
from segue.footprint import parameters
from segue.lab import algorithms, architectures, parts
from segue.lab.experiment import Setting
from segue.lab.train_loop import optimize, short_schedule
from segue.nn.language import LanguageModel
from segue.nn.models import build_language_model
from segue.nn.xl import TransformerXL
from segue.progress import silent


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("learning")
    return Setting(make_corpus(folder, documents=40, words=200), folder / "lab", quick=True)


def test_questions_are_put_together_so_that_only_answers_are_asked() -> None:
    tokens, targets, answers, lengths = algorithms.padded_batch([(b"ab=", b"ba."), (b"c=", b"c.")])
    assert bytes(targets[0][answers[0]].tolist()) == b"ba."
    assert bytes(targets[1][answers[1]].tolist()) == b"c."
    assert lengths.tolist() == [5, 3]
    assert bytes(tokens[0].tolist()) == b"ab=ba"


@pytest.mark.parametrize("name", algorithms.MODELS)
def test_with_enough_memory_segments_read_as_the_whole_text_does(name: str) -> None:
    torch.manual_seed(0)
    setup = algorithms.MODELS[name]
    model = build_language_model(setup.config).double().eval()
    draw = random.Random(0)
    texts = [algorithms.question(draw, "addition", length) for length in (3, 9, 20)]
    tokens, _, _, lengths = algorithms.padded_batch(texts)
    whole = algorithms.ModelSetup(setup.config, 0, setup.memory)
    assert_close(
        algorithms.read(setup, model, tokens, lengths)[0], algorithms.read(whole, model, tokens, lengths)[0]
    )


def test_an_answer_counts_if_all_of_it_is_right() -> None:
    class Copier(TransformerXL):
        """Copies everything but one letter."""

        def forward(self, tokens, memory, **_):  # type: ignore[no-untyped-def]
            size = (tokens[0] == ord("=")).nonzero()[0, 0]
            ahead = torch.roll(tokens, int(size), dims=1)
            ahead[:, -1] = ord(".")
            wrong = ahead.masked_fill(ahead == ord("a"), ord("b"))
            return torch.nn.functional.one_hot(wrong, 128).double(), memory

        def logprobs(self, hidden):  # type: ignore[no-untyped-def]
            return hidden

    setup = algorithms.MODELS["relative"]
    accuracies = algorithms.accuracy(setup, Copier(setup.config), "copy", 5, 300)
    assert accuracies == pytest.approx((0.9**5, 5.4 / 6), abs=0.1)  # the full stop is a symbol too


@pytest.mark.parametrize("name", parts.VARIANTS)
def test_every_variant_learns_and_differs_in_its_part_alone(name: str, setting: Setting) -> None:
    size = parts.Sizes(steps=3, lanes=2, segment=8, scored=64, curve_points=1)
    learned = parts._learned(setting, name, size, 1e-3, seed=0)
    assert learned["finite"]
    assert 0 < learned["bits"] < 100  # running averages over three batches are inexact
    assert len(learned["curve"]) == 1
    whole = parts._config(setting, parts.VARIANTS[parts.COMPLETE])
    assert parameters(parts._config(setting, parts.VARIANTS[name])) == parameters(whole)


def test_only_with_batchnorm_a_sentence_depends_on_its_neighbours(setting: Setting) -> None:
    size = parts.Sizes(steps=1, lanes=4, segment=8)
    assert parts.batch_dependence(setting, parts.VARIANTS[parts.COMPLETE], size)["training"] < 1e-5
    over = parts.batch_dependence(setting, parts.VARIANTS["BatchNorm for LayerNorm"], size)
    assert over["training"] > 1e-2
    assert over["reading"] < 1e-5


def test_without_skip_connections_nothing_goes_around(setting: Setting) -> None:
    model = parts._model(setting, parts.VARIANTS["no skip connections"], 0)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.out.weight.zero_()
    segment = parts.Lanes(setting.stream("train"), 2, documents=False).segment(0, 6)
    hidden = parts._read(model, segment)
    assert_close(hidden, hidden[:1, :1].expand_as(hidden))  # the input does not reach the output


def test_all_architectures_have_one_size(setting: Setting) -> None:
    sizes = {
        name: parameters(architectures.tuned_architecture(setting, name).tuning.recipe.model)
        for name in architectures.ARCHITECTURES
    }
    assert max(sizes.values()) < 1.04 * min(sizes.values())


def test_what_is_not_finite_ends_an_exercise() -> None:
    model = torch.nn.Linear(1, 1)
    steps: list[int] = []

    def loss(step: int) -> torch.Tensor:
        return model.weight.sum() * (float("inf") if step == 2 else 1.0)

    schedule = short_schedule(5, 1e-3, optimizer="adam")
    assert not optimize(model, schedule, loss, label="", report=silent, after=steps.append)
    assert steps == [1, 2]
    assert issubclass(TransformerXL, LanguageModel)
