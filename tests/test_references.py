"""The published implementations, recorded: ours computes what they compute."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

from segue.interop import huggingface, layout, reference
from support import ENGINES, engine_of

FOLDER = Path(__file__).parent / "reference"
AUTHORS = sorted(path.stem for path in FOLDER.glob("*.safetensors") if not path.stem.startswith("hf-"))
HUGGING_FACE = sorted(path.stem for path in FOLDER.glob("hf-*.safetensors"))


def recording(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Everything in the file, its weights, its config."""
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        config = json.loads(file.metadata()["config"])
    weights = {key.removeprefix("weights."): t for key, t in tensors.items() if key.startswith("weights.")}
    return tensors, weights, config


def test_all_recordings_are_here() -> None:
    assert (len(AUTHORS), len(HUGGING_FACE)) == (11, 2)


@pytest.mark.parametrize("name", AUTHORS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_authors_losses_memories_and_gradients(name: str, engine: str) -> None:
    tensors, weights, config = recording(name)
    model, reach = reference.build(weights, config)
    assert model.vocabulary.tables[0].dtype == torch.float64
    tokens, at = tensors["tokens"], 0
    reader = engine_of(engine, model)
    memory = reader.start(lanes=len(tokens), reach=reach)
    for number, length in enumerate(config["segment_lengths"]):
        targets = tokens[:, at + 1 : at + 1 + length]
        hidden, memory = reader(tokens[:, at : at + length], memory)
        nats = reader.nats(hidden, targets)
        assert_close(nats, tensors[f"segment{number}.loss"], rtol=0, atol=1e-9)
        if engine == "training":
            _compare_memory(tensors, f"segment{number}.memory", (*memory.states, hidden.detach()))
            if number == 1:
                model.zero_grad()
                nats.mean().backward()
                _compare_gradients(tensors, model)
        at += length


def _compare_memory(tensors: dict[str, Tensor], prefix: str, states: tuple[Tensor, ...]) -> None:
    for layer, state in enumerate(states):
        wanted = tensors.get(f"{prefix}.{layer}")
        if wanted is not None:
            newest = state[:, max(0, state.size(1) - wanted.size(1)) :]
            wanted = wanted[
                :, wanted.size(1) - newest.size(1) :
            ]  # the last output is longer than a short segment
            assert_close(newest, wanted, rtol=0, atol=1e-9)


def _compare_gradients(tensors: dict[str, Tensor], model: torch.nn.Module) -> None:
    grads = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    found = layout.exported(grads, reference.entries(model.config))
    wanted = {name.removeprefix("segment1.grad."): t for name, t in tensors.items() if ".grad." in name}
    assert wanted.keys() <= found.keys()
    for name, gradient in wanted.items():
        assert_close(found[name], gradient, rtol=0, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.parametrize("engine", ENGINES)
def test_hugging_faces_log_probabilities_and_memories(name: str, engine: str) -> None:
    tensors, weights, config = recording(name)
    model, reach = huggingface.build_transfo_xl(weights, config)
    tokens, at = tensors["tokens"], 0
    reader = engine_of(engine, model)
    memory = reader.start(lanes=len(tokens), reach=reach)
    for number, length in enumerate(config["segment_lengths"]):
        hidden, memory = reader(tokens[:, at : at + length], memory)
        assert_close(reader.logprobs(hidden), tensors[f"segment{number}.logprobs"], rtol=0, atol=1e-5)
        if engine == "training":
            for layer, state in enumerate(memory.states):
                wanted = tensors.get(f"segment{number}.memory.{layer}", state)
                assert_close(state, wanted, rtol=0, atol=1e-5)
        at += length
    assert number == 2
