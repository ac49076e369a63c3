"""The Universal Transformer as language model: a Transformer-XL of equal layers, whose tokens may halt."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, UniversalConfig
from segue.errors import SegueError
from segue.nn.halting import ponder_cost
from segue.nn.memory import Memory
from segue.nn.positions import XLPositions, interleaved_sinusoids
from segue.nn.universal import UniversalTransformer
from segue.nn.xl import TransformerXL
from support import EXAMPLES, VOCAB, cuts, shape, some_tokens

LENGTH = 12
FEW = settings(max_examples=EXAMPLES // 3)
HALTING = ("none", "act", "listing")


def config_of(**changes: object) -> UniversalConfig:
    small = {"vocab": VOCAB, "width": 8, "heads": 2, "feedforward": 12, "steps": 4, "halting": "act"}
    return UniversalConfig(**{**small, **changes})


def build(**changes: object) -> UniversalTransformer:
    """In float64, with weights so large that tokens halt at different steps."""
    torch.manual_seed(0)
    model = UniversalTransformer(config_of(**{"halt_bias": -1.0, "init": 0.4, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if model.recurrence.halting is not None:
            model.recurrence.halting.unit.weight.mul_(4)
    return model


def set_bias(model: UniversalTransformer, bias: float) -> UniversalTransformer:
    with torch.no_grad():
        model.recurrence.halting.unit.weight.zero_()
        model.recurrence.halting.unit.bias.fill_(bias)
    return model


configs = st.fixed_dictionaries(
    {
        "halting": st.sampled_from(HALTING),
        "norm": st.sampled_from(["post", "pre"]),
        "steps": st.integers(2, 4),
        "heads": st.integers(1, 2),
    }
)


@st.composite
def reaches(draw: st.DrawFn) -> Reach:
    """Under which cuts must not show."""
    clamp = draw(st.one_of(st.none(), st.integers(1, LENGTH)))
    if draw(st.booleans()):
        return Reach(memory=LENGTH, clamp=clamp)
    span = draw(st.integers(1, LENGTH))
    return Reach(
        memory=draw(st.integers(span - 1, LENGTH)),
        clamp=clamp,
        span=span,
        initial=draw(st.sampled_from(["empty", "zeros"])),
    )


ENGINE = pytest.mark.parametrize("engine", ["training", "frozen"])


def engine_of(name: str, model: UniversalTransformer) -> Any:
    return model if name == "training" else model.frozen()


class NumberedLayers(XLPositions):
    """Adds a step's encoding to the inputs of each layer: all that a Transformer-XL lacks to be universal."""

    def layer_input(self, layer: int, hidden: Tensor, places: Tensor) -> Tensor:  # noqa: ARG002
        return hidden + interleaved_sinusoids(torch.tensor(layer + 1), hidden.size(-1), hidden.dtype)


def layered(model: UniversalTransformer) -> TransformerXL:
    """A Transformer-XL whose layers hold copies of the block."""
    config = model.config
    fields = config.model_dump(include={"vocab", "width", "heads", "feedforward", "norm"})
    built = TransformerXL(shape(layers=config.steps, **fields)).double().eval()
    built.positions = NumberedLayers(built.config, config.steps, 1).double()
    ours = {name: weight for name, weight in model.state_dict().items() if "halting" not in name}
    copies = {
        name.replace("blocks.0.", f"blocks.{layer}.").replace(
            "projections.0.", f"projections.{layer}."
        ): weight
        for name, weight in ours.items()
        for layer in range(config.steps)
    }
    built.load_state_dict(copies)
    return built


@FEW
@given(st.sampled_from(["post", "pre"]), st.integers(1, 4), cuts(LENGTH))
def test_without_halting_it_is_a_transformer_xl_of_equal_layers(
    norm: str, steps: int, places: list[int]
) -> None:
    model = build(halting="none", norm=norm, steps=steps)
    theirs, tokens = layered(model), some_tokens(2, LENGTH)
    reach = Reach(memory=5, clamp=4)
    ours, wanted = (one.start(lanes=2, reach=reach) for one in (model, theirs))
    for piece in torch.tensor_split(tokens, places, dim=1):
        hidden, ours = model(piece, ours)
        expected, wanted = theirs(piece, wanted)
        assert_close(hidden, expected)
    assert_close(ours.rows, wanted.rows)


def test_gradients_are_the_sum_over_the_equal_layers() -> None:
    model = build(halting="none", steps=3)
    theirs, tokens = layered(model), some_tokens(2, LENGTH)
    for one in (model, theirs):
        hidden, _ = one(tokens, one.start(lanes=2, reach=Reach(memory=0)))
        one.nats(hidden, tokens).mean().backward()
    name = "attention.key_value.weight"
    copies = [dict(block.named_parameters())[name].grad for block in theirs.blocks]
    assert_close(dict(model.blocks[0].named_parameters())[name].grad, sum(copies))


def textbook(model: UniversalTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(T, C) Outputs and (T,) steps of one lane: token by token, step by step, as the formulas say.

    Later tokens see of a halted one the state it halted with, and the number of their own step.
    """
    theirs, unit, steps = layered(model), model.recurrence.halting.unit, model.config.steps
    seen: list[list[Tensor]] = [[] for _ in range(steps)]  # by step: what entered it, of all tokens so far
    outputs, counts = [], []
    opened = theirs.opened(tokens[None], theirs.start(reach=Reach(memory=0)), None, None)
    for embedded in opened.hidden:
        state, spent, output, taken, running = embedded, 0.0, torch.zeros(8).double(), 0, True
        for step in range(steps):
            entered = theirs.positions.layer_input(step, state, state)
            past = torch.stack([*seen[step], state])[:-1]
            seen[step].append(entered)
            if not running:
                continue
            whole = theirs.relative_keys(len(past) + 1, None)[step]
            mask = type(opened.masks[0])(len(past), 1)
            state = theirs.blocks[step](entered[None], past, whole, mask)[0]
            chance, taken = float(unit(entered).sigmoid()), taken + 1
            if spent + chance > 0.99 or step + 1 == steps:
                running, output = False, output + (1 - spent) * state[0]
            else:
                spent, output = spent + chance, output + chance * state[0]
        outputs.append(output)
        counts.append(taken)
    return torch.stack(outputs), torch.tensor(counts)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_halting_tokens_read_as_the_formulas_say(norm: str) -> None:
    model, tokens = build(norm=norm), some_tokens(1, LENGTH)
    expected, counts = textbook(model, tokens[0])
    assert len(set(counts.tolist())) > 1, "tokens should halt at different steps, or this shows nothing"
    hidden, _, pondering = model.pondered(tokens, model.start(reach=Reach(memory=LENGTH)))
    assert_close(hidden[0], expected)
    assert pondering.steps[0].tolist() == counts.tolist()


def test_parameters_do_not_grow_with_steps() -> None:
    sizes = {sum(weight.numel() for weight in build(steps=steps).parameters()) for steps in (2, 3, 9)}
    assert len(sizes) == 1


@ENGINE
@pytest.mark.parametrize(("bias", "steps"), [(-1e4, 4), (1e4, 1)])
def test_a_bias_without_end_takes_all_steps_or_one(engine: str, bias: float, steps: int) -> None:
    """B → -∞ gives the state after the last step, b → +∞ that after the first."""
    model, tokens = set_bias(build(), bias), some_tokens(2, LENGTH)
    reader = engine_of(engine, model)
    hidden, _, pondering = reader.pondered(tokens, reader.start(lanes=2, reach=Reach(memory=4)))
    fixed = build(halting="none", steps=steps)
    fixed.load_state_dict({name: model.state_dict()[name] for name in fixed.state_dict()})
    expected, _ = fixed(tokens, fixed.start(lanes=2, reach=Reach(memory=4)))
    assert_close(hidden, expected)
    assert set(pondering.steps.flatten().tolist()) == {steps}
    assert_close(ponder_cost(pondering), torch.tensor(steps + 1.0, dtype=torch.float64))


@ENGINE
@FEW
@given(configs, reaches(), cuts(LENGTH))
def test_where_the_seams_fall_makes_no_difference(
    engine: str, changes: dict[str, Any], reach: Reach, places: list[int]
) -> None:
    model, tokens = engine_of(engine, build(**changes)), some_tokens(2, LENGTH)
    begin = model.start(lanes=2, reach=reach)
    whole, after, pondering = model.pondered(tokens, begin)
    memory: Memory = begin
    pieces, steps = [], []
    for piece in torch.tensor_split(tokens, places, dim=1):
        hidden, memory, part = model.pondered(piece, memory)
        pieces.append(hidden)
        steps.append(part.steps)
    assert_close(torch.cat(pieces, dim=1), whole)
    assert_close(memory.rows, after.rows)
    assert torch.equal(torch.cat(steps, dim=1), pondering.steps)


@FEW
@given(configs, st.integers(0, LENGTH), cuts(LENGTH))
def test_the_engine_reads_what_the_model_reads(
    changes: dict[str, Any], memory: int, places: list[int]
) -> None:
    model, tokens = build(**changes), some_tokens(2, LENGTH)
    frozen, states = model.frozen(), model.start(lanes=2, reach=Reach(memory=memory))
    projected = frozen.project(states)
    for piece in torch.tensor_split(tokens, places, dim=1):
        expected, states, theirs = model.pondered(piece, states)
        hidden, projected, ours = frozen.pondered(piece, projected)
        assert_close(hidden, expected)
        assert torch.equal(ours.steps, theirs.steps)
        assert_close(frozen.project(states).rows, projected.rows)


@ENGINE
@FEW
@given(configs, st.integers(1, LENGTH - 1))
def test_later_tokens_change_no_earlier_halting(engine: str, changes: dict[str, Any], change: int) -> None:
    model, tokens = engine_of(engine, build(**changes)), some_tokens(1, LENGTH)
    other = tokens.clone()
    other[:, change:] = (other[:, change:] + 1) % VOCAB
    begin = model.start(reach=Reach(memory=3))
    first, _, ours = model.pondered(tokens, begin)
    second, _, theirs = model.pondered(other, begin)
    assert_close(second[:, :change], first[:, :change])
    assert torch.equal(ours.steps[:, :change], theirs.steps[:, :change])
    assert not torch.allclose(second[:, change:], first[:, change:])


@ENGINE
@FEW
@given(configs, st.lists(st.integers(0, 6), min_size=2, max_size=3), st.integers(0, 5))
def test_padding_ponders_nothing_and_changes_nothing(
    engine: str, changes: dict[str, Any], counts: list[int], start: int
) -> None:
    """Nor do documents that start anywhere: every lane reads and halts as if it were alone."""
    model, lanes = engine_of(engine, build(**changes)), len(counts)
    tokens, starts = some_tokens(lanes, 6), torch.zeros(lanes, 6, dtype=torch.bool)
    starts[0, start] = True
    lengths = torch.tensor(counts)
    _, memory = model(some_tokens(lanes, 4, 1), model.start(lanes=lanes, reach=Reach(memory=20)))
    hidden, after, pondering = model.pondered(tokens, memory, starts=starts, lengths=lengths)
    assert torch.equal(pondering.steps > 0, torch.arange(6) < lengths[:, None])
    again, more = some_tokens(lanes, 3, 2), []
    for lane, count in enumerate(counts):
        own = memory.select([lane])
        parts = [(0, count)] if lane or start >= count else [(0, start), (start, count)]
        for number, (begin, end) in enumerate(parts):
            if begin == end:
                continue
            own = model.start(reach=Reach(memory=20)) if number else own
            wanted, own, alone = model.pondered(tokens[lane : lane + 1, begin:end], own)
            assert_close(hidden[lane : lane + 1, begin:end], wanted)
            assert torch.equal(pondering.steps[lane : lane + 1, begin:end], alone.steps)
        if not lane and start == 0 and count:
            continue  # its fresh memory began before the first part
        more.append((lane, model(again[lane : lane + 1], own)[0]))
        assert not hidden[lane, count:].any()
    onward, _ = model(again, after)
    for lane, wanted in more:
        assert_close(onward[lane : lane + 1], wanted)


def test_a_memory_is_a_value_and_has_rows_for_each_step() -> None:
    model, tokens = build(steps=3), some_tokens(2, 8)
    _, memory = model(tokens, model.start(lanes=2, reach=Reach(memory=5)))
    assert [tuple(rows.shape) for rows in memory.rows] == [(2, 5, 8)] * 3
    frozen = model.frozen()
    for reader, held in ((model, memory), (frozen, frozen.project(memory))):
        first, _ = reader(tokens, held)
        reader(tokens, reader(tokens, held)[1])
        assert_close(reader(tokens, held)[0], first, rtol=0, atol=0)
        twins = type(held).join([held.select([1]), held.select([0])])
        assert_close(reader(tokens.flip(0), twins)[0], first.flip(0))


@pytest.mark.parametrize("bias", [1e4, -1.0])
def test_streams_of_different_ages_step_together(bias: float) -> None:
    """Their keys and values lie in several buffers, those of skipped steps too."""
    model = build()
    if bias > 0:
        set_bias(model, bias)
    reader, tokens = model.frozen(), some_tokens(3, 9)
    begun = [
        reader(tokens[lane : lane + 1, : 2 + lane], reader.start(reach=Reach(memory=6)))[1]
        for lane in range(3)
    ]
    together: Memory = type(begun[0]).join(begun)
    for moment in range(3):
        newest = torch.stack([tokens[lane, 2 + lane + moment] for lane in range(3)])[:, None]
        hidden, together = reader(newest, together)
        for lane in range(3):
            alone, begun[lane] = reader(newest[lane : lane + 1], begun[lane])
            assert_close(hidden[lane : lane + 1], alone)


@pytest.mark.parametrize("halting", HALTING)
def test_half_precision_stays_half_and_halts_in_whole(halting: str) -> None:
    model, tokens = build(halting=halting).bfloat16(), some_tokens(2, 5)
    for reader in (model, model.frozen()):
        hidden, _, pondering = reader.pondered(tokens, reader.start(lanes=2, reach=Reach(memory=5)))
        assert model.nats(hidden, tokens).isfinite().all()
        assert hidden.dtype == torch.bfloat16
        assert halting == "none" or pondering.remainder.dtype == torch.float32


def test_steps_that_nobody_takes_are_skipped() -> None:
    model, tokens = set_bias(build(steps=9), 1e4), some_tokens(1, 5)
    taken: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: taken.append(1))
    model(tokens, model.start(reach=Reach(memory=5)))
    assert len(taken) == 1


def test_only_what_makes_sense_is_built() -> None:
    with pytest.raises(SegueError, match="encoding should be 'xl'; found 'sinusoidal'"):
        config_of(encoding="sinusoidal")
    with pytest.raises(SegueError, match="UniversalTransformer has no such engine"):
        build().frozen(int8=True)
    assert build().recurrence.halting is not None
    assert UniversalTransformer(config_of(halt_bias=-2.5)).recurrence.halting.unit.bias.item() == -2.5
