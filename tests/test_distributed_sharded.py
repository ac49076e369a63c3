"""Ranks that hold a part of each weight train as one process that holds all of them."""

from pathlib import Path

import pytest
import torch
from hypothesis import given

import segue
from rank_runs import SIZES, both, check_equal, cut_to, pair_recipe, plain_recipe, weights
from ranks import on_ranks, succeeded
from segue.checkpoint import Bundle
from segue.config import XLConfig
from segue.distributed import process_group
from segue.errors import SegueError
from segue.nn.deferred import deferred
from segue.nn.xl import TransformerXL
from segue.recipe import Recipe
from segue.text.corpus import open_corpus
from segue.training.language import LanguageTask
from support import shapes


def sharded_recipe(**train: object) -> Recipe:
    """With clusters, whose tables and projections are shared out too; some have fewer rows than there are ranks."""
    recipe = plain_recipe(**{"optimizer": "adamw", "sharded": True, **train})
    clustered = recipe.model.model_copy(update={"cutoffs": (100, 253), "divisor": 2})
    return recipe.model_copy(update={"model": clustered})


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("size", SIZES)
def test_ranks_with_parts_of_the_weights_train_as_one_process(
    size: int, corpus: Path, tmp_path: Path
) -> None:
    recipe = sharded_recipe(accumulate=2, validate_every=20, validate_tokens=300, save_every=20)
    alone = segue.train(recipe, corpus, tmp_path / "alone")
    succeeded(on_ranks(size, tmp_path, segue.train, recipe, corpus, tmp_path / "shared"))
    check_equal(alone, tmp_path / "shared")
    part = cut_to(tmp_path / "shared", tmp_path / "part", 40)
    succeeded(on_ranks(size, tmp_path, segue.resume, part))
    for name, weight in weights(part).items():
        assert torch.equal(weight, weights(tmp_path / "shared")[name]), name
    whole = cut_to(tmp_path / "shared", tmp_path / "whole", 40)  # and one process takes it over
    segue.resume(whole, changes=["train.sharded=false"])
    torch.testing.assert_close(weights(whole), weights(alone), rtol=0, atol=1e-9)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoding", ["sinusoidal", "xl"])
def test_ranks_with_parts_of_a_translator_train_as_one_process(
    encoding: str, size: int, pairs: Path, tmp_path: Path
) -> None:
    """Also where translations of the validation split decide, which every rank makes from parts."""
    recipe = pair_recipe(pairs, sharded=True, best="bleu", steps=20, save_every=10)
    shape = recipe.model.model_copy(update={"encoding": encoding})
    recipe = recipe.model_copy(update={"model": shape})
    alone, shared = both(recipe, pairs, tmp_path, size)
    check_equal(alone, shared, steps=20)
    part = cut_to(shared, tmp_path / "part", 10)
    succeeded(on_ranks(size, tmp_path, segue.resume, part))
    for name, weight in weights(part, 20).items():
        assert torch.equal(weight, weights(shared, 20)[name]), name
    assert segue.load_translator(shared).model.config == shape


@pytest.mark.usefixtures("exact")
def test_fine_tuning_begins_with_the_weights_given(corpus: Path, tmp_path: Path) -> None:
    recipe = sharded_recipe(steps=1, learning_rate=1e-15, save_every=0)
    torch.manual_seed(5)
    bundle = Bundle(TransformerXL(recipe.model), recipe.reading)
    succeeded(on_ranks(2, tmp_path, fine_tune, recipe, corpus, tmp_path / "run", bundle))
    torch.testing.assert_close(
        weights(tmp_path / "run", 1), dict(bundle.model.state_dict()), rtol=0, atol=1e-12
    )


def fine_tune(recipe: Recipe, corpus: Path, run: Path, bundle: Bundle) -> None:
    segue.train(recipe, corpus, run, begin_with=bundle)


def test_each_rank_holds_its_part_and_no_more(corpus: Path, tmp_path: Path) -> None:
    succeeded(on_ranks(2, tmp_path, count_bytes, sharded_recipe(), corpus))


def count_bytes(recipe: Recipe, corpus: Path) -> None:
    """Weights, gradients and both moments: what lies in this rank is half of the model, but for odd rows."""
    with process_group() as ranks:
        task = LanguageTask(recipe, open_corpus(corpus), torch.device("cpu"), ranks)
        state = task.fresh()
        for micro_batch in task.micro_batches(state):
            micro_batch.backward()
        state.optimizers[0].step()
        whole = sum(weight.numel() for weight in state.model.parameters())
        for values in (
            [weight.to_local() for weight in state.model.parameters()],
            [weight.grad.to_local() for weight in state.model.parameters()],
            [state.optimizers[0].state[weight]["exp_avg"].to_local() for weight in state.model.parameters()],
        ):
            held = sum(value.numel() for value in values)
            assert abs(held - whole / 2) < 0.02 * whole


def test_half_precision_gathers_halves_and_adds_up_whole_numbers(corpus: Path, tmp_path: Path) -> None:
    succeeded(on_ranks(2, tmp_path, learn_in_halves, sharded_recipe(precision="bfloat16"), corpus))


def learn_in_halves(recipe: Recipe, corpus: Path) -> None:
    """Products are in bfloat16; weights and gradients stay float32, and are those of float32 but for rounding."""
    torch.backends.mkldnn.enabled = (
        False  # its products in bfloat16 are illegal instructions on some machines
    )
    with process_group() as ranks:
        gradients = []
        for precision in ("bfloat16", "float32"):
            train = recipe.train.model_copy(update={"precision": precision})
            chosen = recipe.model_copy(update={"train": train})
            task = LanguageTask(chosen, open_corpus(corpus), torch.device("cpu"), ranks)
            state, seen = task.fresh(), []
            state.model.blocks[0].register_forward_hook(lambda *call, seen=seen: seen.append(call[2].dtype))
            for micro_batch in task.micro_batches(state):
                micro_batch.backward()
            assert set(seen) == {getattr(torch, precision)}
            own_gradients = {name: weight.grad.to_local() for name, weight in state.model.named_parameters()}
            assert {gradient.dtype for gradient in own_gradients.values()} == {torch.float32}
            gradients.append(torch.cat([gradient.flatten() for gradient in own_gradients.values()]))
        half, whole = gradients
        assert 0 < (half - whole).norm() < 0.05 * whole.norm()


@given(shapes())
def test_weights_drawn_later_are_those_drawn_at_once(config: XLConfig) -> None:
    torch.manual_seed(1)
    at_once = TransformerXL(config)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    model, draws = deferred(lambda: TransformerXL(config))
    assert torch.equal(torch.get_rng_state(), after)
    assert all(weight.is_meta for weight in model.parameters())
    for name, weight in at_once.named_parameters():
        assert torch.equal(draws[name](), weight), name


def test_muon_is_refused_where_matrices_are_in_parts() -> None:
    with pytest.raises(
        SegueError, match="muon needs whole matrices, and sharded ranks hold parts; use adamw"
    ):
        sharded_recipe(optimizer="muon")
