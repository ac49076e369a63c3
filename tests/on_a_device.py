"""The laws of a device that is not the CPU: all that is computed lies there, equals the CPU's, and nobody waits for it.

`test_device.py` runs this in a process of its own, because a device is registered with torch for good.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from device_models import ENCODERS, LANGUAGE, TRANSLATION, config_of
from pretend_device import DEVICE, NAME, generators, largest, waits
from runs import small_recipe
from segue.checkpoint import load, load_translator
from segue.config import Reach, Translating
from segue.distributed import ALONE
from segue.infer.evaluate import evaluate
from segue.infer.sample import Sampling, choose, race
from segue.infer.session import generate_samples, start_session
from segue.infer.translate import translate
from segue.nn.attention import gather
from segue.nn.mask import AttentionMask
from segue.nn.models import CLASSES
from segue.recipe import TranslationRecipe
from segue.text.corpus import open_corpus
from segue.training.language import LanguageTask
from segue.training.loop import Training
from segue.training.optim import build_optimizers
from segue.training.run import resume, train

LANES, SIZE = 2, 5
TOKENS = torch.tensor([[1, 5, 9, 12, 3], [0, 4, 8, 11, 7]])
LENGTHS = torch.tensor([SIZE, 3])
STARTS = torch.tensor([[False, False, True, False, False], [True, False, False, False, False]])
REACHES = {"xl xl": Reach(memory=5, span=4), "xl shaw": Reach(memory=6, pinned=2, span=7)}


def both(form: dict[str, Any]) -> tuple[Any, Any]:
    """The same model on the CPU and on the device, with weights large enough for differences to show."""
    torch.manual_seed(0)
    config = config_of(form)
    model = CLASSES[config.kind](config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model, deepcopy(model).to(DEVICE)


def same(here: Tensor, there: Tensor) -> None:
    assert there.device == DEVICE
    torch.testing.assert_close(there.detach().cpu(), here.detach(), rtol=1e-4, atol=1e-5)


def same_gradients(here: Any, there: Any) -> None:
    for ours, theirs in zip(here.parameters(), there.parameters(), strict=True):
        if ours.grad is not None:
            same(ours.grad, theirs.grad)


def test_the_device_refuses_the_cpus_tensors() -> None:
    with pytest.raises(RuntimeError, match="found tensors on pretend:0 and on cpu"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    with pytest.raises(RuntimeError, match="generator of the CPU"):
        torch.ones(2, device=DEVICE).exponential_(generator=torch.Generator())


def test_the_device_counts_waits() -> None:
    numbers = torch.arange(3).to(DEVICE, non_blocking=True)
    asked = {
        "item": numbers[0].item,
        "bool": lambda: bool(numbers[0] > 1),
        "tolist": numbers.tolist,
        "cpu": numbers.cpu,
        "nonzero": numbers.nonzero,
        "a boolean index": lambda: numbers[numbers > 1],
        "an index of the CPU": lambda: numbers[torch.tensor([1])],
        "a blocking upload": lambda: torch.arange(3).to(DEVICE),
        "a list": lambda: torch.tensor([1, 2], device=DEVICE),
        "multinomial": lambda: torch.multinomial(numbers.float(), 1),
    }
    for name, ask in asked.items():
        with waits() as counted:
            ask()
        assert counted.total() == 1, name
    with waits() as counted:
        (numbers[1:] * 2).masked_fill(numbers[1:] > 1, 0)
    assert not counted


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_learns_without_a_wait(name: str) -> None:
    here, there = both(LANGUAGE[name])
    reach, there_tokens = REACHES.get(name, Reach(memory=6)), TOKENS.to(DEVICE)
    memories = [model.start(lanes=LANES, reach=reach) for model in (here, there)]
    for marks in ({}, {"starts": STARTS, "lengths": LENGTHS}):
        losses = []
        for place, (model, tokens) in enumerate(((here, TOKENS), (there, there_tokens))):
            with waits() as counted:
                hidden, memories[place] = model(tokens, memories[place], **marks)
                losses.append(model.nats(hidden, TOKENS).mean())
                losses[-1].backward()
            assert not counted, f"{marks}: {dict(counted)}"
        if "dropout" not in name:  # a CPU draws dropout in its own way
            same(*losses)
            same_gradients(here, there)


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_reads_without_a_wait(name: str) -> None:
    engines = [model.eval().frozen() for model in both(LANGUAGE[name])]
    reach, read = REACHES.get(name, Reach(memory=6)), []
    for engine, tokens in zip(engines, (TOKENS, TOKENS.to(DEVICE)), strict=True):
        with waits() as counted:
            memory = engine.start(lanes=LANES, reach=reach)
            hidden, memory = engine(tokens, memory, lengths=LENGTHS)
            for place in range(2):
                hidden, memory = engine(tokens[:, place, None], memory)
            memory = memory.select([1, 1, 0])
            read.append(engine.logprobs(hidden))
        assert not counted, dict(counted)
    same(*read)


@pytest.mark.parametrize("name", TRANSLATION)
def test_a_translator_learns_and_reads_without_a_wait(name: str) -> None:
    here, there = both(TRANSLATION[name])
    losses, read = [], []
    for model, tokens in ((here, TOKENS % 11), (there, (TOKENS % 11).to(DEVICE))):
        with waits() as counted:
            hidden, _ = model(tokens, model.start(tokens, LENGTHS), lengths=LENGTHS)
            losses.append(model.vocabulary.smoothed_nats(hidden, tokens, 0.1).mean())
            losses[-1].backward()
            engine = model.eval().frozen()
            memory = engine.start(tokens, LENGTHS)
            for place in range(2):
                hidden, memory = engine(tokens[:, place, None], memory)
            memory.select([1, 1, 0])
            read.append(engine.logprobs(hidden))
        assert not counted, dict(counted)
    same(*losses)
    same(*read)
    same_gradients(here, there)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_learns_without_a_wait(name: str) -> None:
    here, there = both(ENCODERS[name])
    mask = (torch.arange(SIZE) < LENGTHS[:, None]).long()
    outputs = []
    for model, tokens, seen in ((here, TOKENS, mask), (there, TOKENS.to(DEVICE), mask.to(DEVICE))):
        with waits() as counted:
            outputs.append(model(tokens, seen)[0])
            outputs[-1].square().sum().backward()
        assert not counted, dict(counted)
    same(*outputs)
    same_gradients(here, there)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "nesterov", "muon"])
def test_an_optimizer_steps_without_a_wait(optimizer: str) -> None:
    here, there = both(LANGUAGE["xl xl"])
    decay = 0.0 if optimizer == "adam" else 0.1
    schedule = small_recipe(optimizer=optimizer, weight_decay=decay).train
    for model in (here, there):
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 0.5)
        optimizers = build_optimizers(model, schedule)
        with waits() as counted:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for one in optimizers:
                one.step()
                one.zero_grad()
        assert not counted, dict(counted)
    for ours, theirs in zip(here.parameters(), there.parameters(), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("settings", [{"optimizer": "muon", "accumulate": 2}, {"precision": "bfloat16"}])
def test_a_step_of_training_waits_once_for_its_loss(corpus: Path, tmp_path: Path, settings: Any) -> None:
    """The loss and the gradient's norm are looked at together, before the weights change."""
    recipe = small_recipe(**settings)
    task = LanguageTask(recipe, open_corpus(corpus), DEVICE)
    training = Training(recipe.train, tmp_path, task, task.fresh(), ranks=ALONE)
    training._step()
    with waits() as counted:
        training._step()
    assert counted.total() == 1, dict(counted)


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on the device, interrupted and resumed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    steps: list[int] = []
    recipe = small_recipe(steps=4, validate_every=2, validate_tokens=30, optimizer="muon")
    train(
        recipe, corpus, folder, device=NAME,
        watch=lambda event: steps.append(event.step), interrupted=lambda: 2 in steps,
    )  # fmt: skip
    assert max(steps) == 2
    return resume(folder, data=corpus, device=NAME)


def test_a_run_resumes_on_the_device_exactly(run: Path, corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(steps=4, validate_every=2, validate_tokens=30, optimizer="muon")
    whole = load(train(recipe, corpus, tmp_path / "run", device=NAME)).model
    for ours, theirs in zip(whole.parameters(), load(run).model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_score_waits_once_for_each_segment(run: Path, corpus: Path) -> None:
    bundle, stream = load(run), open_corpus(corpus).stream("valid")
    here = evaluate(bundle.model, stream, bundle.reading, limit=20)
    bundle.model.to(DEVICE)
    with waits() as counted:
        there = evaluate(bundle.model, stream, bundle.reading, limit=20)
    assert there.nats == pytest.approx(here.nats, rel=1e-5)
    assert counted.total() <= 20 // bundle.reading.segment + 1, dict(counted)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_k": 9, "top_p": 0.9}])
def test_a_generated_token_is_waited_for_once_to_be_shown(run: Path, sampling: Any) -> None:
    texts = []
    for device in ("cpu", DEVICE):
        bundle = load(run)
        bundle.model.to(device)
        session = start_session(bundle)
        session.feed("the sea")
        with generators(), waits() as counted:
            texts.append(session.generate(5, seed=3, **sampling))
        assert counted.total() == (0 if device == "cpu" else 5), dict(counted)
        with generators(), waits() as counted:
            generate_samples(session, 3, 2, Sampling(**sampling), seed=3)
        assert counted.total() == (0 if device == "cpu" else 2), dict(counted)
    assert texts[0] == texts[1]


def test_a_token_is_chosen_without_a_wait() -> None:
    logprobs = torch.randn(2, 7, device=DEVICE).log_softmax(dim=-1)
    with generators(), waits() as counted:
        generator = torch.Generator(device=DEVICE).manual_seed(1)
        for sampling in (Sampling(temperature=0), Sampling(), Sampling(top_k=3, top_p=0.8)):
            assert choose(logprobs, sampling, generator).device == DEVICE
    assert not counted, dict(counted)


def test_the_race_draws_what_multinomial_draws() -> None:
    chances = torch.randn(3, 11, dtype=torch.float64).softmax(dim=-1)
    for seed in range(50):
        one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
        assert torch.equal(race(chances, one), torch.multinomial(chances, 1, generator=other).squeeze(1))


def test_a_beam_waits_once_for_each_token(pairs: Path, tmp_path: Path) -> None:
    recipe = TranslationRecipe(
        model={
            "kind": "seq2seq",
            "vocab": 272,
            "width": 8,
            "heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
        },
        train={"steps": 2, "tokens": 60, "learning_rate": 1e-3},
        translating={},
    )
    folder = train(recipe, pairs, tmp_path / "run", device=NAME)
    how, found = Translating(beam_width=3, longest=6), []
    for device in ("cpu", DEVICE):
        translator = load_translator(folder)
        translator.model.to(device)
        with waits() as counted:
            found.append(translate(translator, [b"the sea", b"a ship went"], translating=how))
        assert counted.total() <= (0 if device == "cpu" else 6), dict(counted)
    assert [[one.text for one in texts] for texts in found[0]] == [
        [one.text for one in texts] for texts in found[1]
    ]


@pytest.mark.parametrize("name", ["causal", "span", "both sides", "window"])
def test_autocast_never_holds_all_scores(name: str) -> None:
    queries, keys, heads, width = 300, 300, 2, 4
    masks = {
        "causal": AttentionMask(0, queries),
        "span": AttentionMask(0, queries, span=20),
        "both sides": AttentionMask(keys, queries, causal=False),
        "window": AttentionMask(keys, queries, causal=False, window=20),
    }
    inputs = [torch.randn(shape, 1, heads, width) for shape in (queries, 2 * keys)]
    there = [one.to(DEVICE).requires_grad_() for one in inputs]
    with largest() as sizes, torch.autocast(NAME, torch.bfloat16):
        query, keys_values = there[0], there[1].unflatten(0, (2, -1))
        gathered = gather(query, keys_values, None, masks[name], 0.5)
        gathered.float().sum().backward()
    assert gathered.dtype == torch.bfloat16
    assert sizes[0] < heads * queries * keys
    exact = gather(inputs[0], inputs[1].unflatten(0, (2, -1)), None, masks[name], 0.5)
    torch.testing.assert_close(gathered.detach().cpu().float(), exact, rtol=0.05, atol=0.05)
