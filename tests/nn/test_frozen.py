"""The engine of a Transformer-XL: the numbers of the model in training, in fewer operations, without copies."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from runs import small_recipe
from segue.config import Reach, RecurrentConfig, XLConfig
from segue.errors import InputError
from segue.nn import frozen, frozen_layer
from segue.nn.kv_memory import KVMemory
from segue.nn.memory import Memory
from segue.nn.recurrent import RecurrentModel
from segue.training.optim import build_optimizers
from support import ENGINES, build, engine_of, shape, shapes, some_tokens

REACH = Reach(memory=4)
FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines


@pytest.fixture(autouse=True)
def weights_first_from_three_lanes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_layer, "WEIGHTS_FIRST", 3)


def token_by_token(name: str, config: XLConfig, tokens: Tensor, reach: Reach) -> tuple[Tensor, Memory]:
    reader = engine_of(name, build(config))
    memory: Memory = reader.start(lanes=len(tokens), reach=reach)
    parts = []
    for token in tokens.split(1, dim=1):
        hidden, memory = reader(token, memory)
        parts.append(hidden)
    return torch.cat(parts, dim=1), memory


@given(shapes(), st.integers(1, 3), st.data())
@torch.no_grad()
def test_steps_equal_blocks(config: XLConfig, lanes: int, data: st.DataObject) -> None:
    memory = data.draw(st.integers(1, 8))
    clamps = st.one_of(st.none(), st.integers(1, 9)) if config.position_encoding.relative else st.none()
    reach = Reach(
        memory=memory,
        clamp=data.draw(clamps),
        span=data.draw(st.one_of(st.none(), st.integers(1, memory + 1))),
        initial=data.draw(st.sampled_from(["empty", "zeros"])),
    )
    tokens = some_tokens(lanes, 13)
    theirs, _ = token_by_token("training", config, tokens, reach)
    for name in ENGINES[1:]:
        ours, after = token_by_token(name, config, tokens, reach)
        assert_close(ours, theirs)
        # what was stepped through reads on in larger pieces, and a parent is not changed by its children
        engine, more = engine_of(name, build(config)), some_tokens(lanes, 3)
        first, _ = engine(more, after)
        assert_close(engine(more[:, :1], after)[0], first[:, :1])
        assert_close(engine(more, after)[0], first, rtol=0, atol=0)


@given(shapes(), st.lists(st.integers(0, 9), min_size=1, max_size=5), st.data())
def test_sessions_of_different_ages_step_together_as_each_alone(
    config: XLConfig, ages: list[int], data: st.DataObject
) -> None:
    engine, reach = build(config).frozen(), Reach(memory=data.draw(st.integers(1, 7)))
    memories = []
    for number, age in enumerate(ages):
        memory = engine.start(reach=reach)
        memories.append(engine(some_tokens(1, age, seed=number), memory)[1] if age else memory)
    joined = KVMemory.join(memories)
    for step in range(3):
        tokens = some_tokens(len(ages), 1, seed=99 + step)
        hidden, joined = engine(tokens, joined)
        for lane, memory in enumerate(memories):
            wanted, memories[lane] = engine(tokens[lane : lane + 1], memory)
            assert_close(hidden[lane : lane + 1], wanted)
        chosen = data.draw(st.lists(st.integers(0, len(ages) - 1), min_size=len(ages), max_size=len(ages)))
        joined, memories = joined.select(chosen), [memories[lane] for lane in chosen]
    more = some_tokens(len(ages), 4)
    hidden, _ = engine(more, joined)
    for lane, memory in enumerate(memories):
        assert_close(hidden[lane : lane + 1], engine(more[lane : lane + 1], memory)[0])


def test_joining_and_dropping_lanes_copies_nothing() -> None:
    engine, reach = build(shape()).frozen(), Reach(memory=8)
    memories = [engine(some_tokens(1, 3 + age), engine.start(reach=reach))[1] for age in range(4)]
    homes = [memory.parts[0].buffer for memory in memories]
    joined = KVMemory.join(memories)
    assert [part.buffer for part in joined.parts] == homes
    assert [part.buffer for part in joined.select([3, 1]).parts] == [homes[3], homes[1]]
    _, batch = engine(some_tokens(4, 5), engine.start(lanes=4, reach=reach))
    kept = batch.select([0, 1, 3])
    assert {part.buffer for part in kept.parts} == {batch.parts[0].buffer}
    assert [part.count for part in kept.parts] == [2, 1]
    _, after = engine(some_tokens(3, 1), kept)  # the slots behind are free for each lane
    assert {part.buffer for part in after.parts} == {batch.parts[0].buffer}
    assert len(batch.select([1, 1, 0]).parts) == 1  # a lane that is taken twice is copied


def test_a_step_of_joined_sessions_never_puts_their_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, reach = build(shape()).frozen(), Reach(memory=8)
    memories = [engine(some_tokens(1, 3 + age), engine.start(reach=reach))[1] for age in range(4)]
    monkeypatch.setattr(KVMemory, "rows", property(lambda _: pytest.fail("all rows were copied")))
    joined = KVMemory.join(memories)
    for _ in range(3):
        _, joined = engine(some_tokens(joined.lanes, 1), joined)
        joined = KVMemory.join([joined.select([0, joined.lanes - 1]), joined.select([1])])


def test_steps_run_where_they_may_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model, taken = build(shape()), []
    original = frozen_layer.FrozenLayer.step
    monkeypatch.setattr(
        frozen_layer.FrozenLayer,
        "step",
        lambda layer, *given: (taken.append(layer), original(layer, *given))[1],
    )
    engine, tokens = engine_of("frozen", model), some_tokens(2, 1)
    _, memory = engine(some_tokens(2, 3), engine.start(lanes=2, reach=Reach(memory=4)))
    engine(tokens, memory, lengths=torch.tensor([1, 0]))
    assert not taken
    engine(tokens, memory)
    assert len(taken) == len(model.blocks)


def test_a_frozen_model_has_no_dropout_and_no_gradient() -> None:
    model = build(shape(dropout=0.5, attention_dropout=0.5)).train()
    engine, tokens = model.frozen(), some_tokens(2, 5)
    memory = engine.start(lanes=2, reach=Reach(memory=4))
    hidden, _ = engine(tokens, memory)
    assert_close(engine(tokens, memory)[0], hidden, rtol=0, atol=0)
    assert not hidden.requires_grad
    assert not engine.nats(hidden, tokens).requires_grad
    assert model.training
    assert_close(model.eval()(tokens, model.start(lanes=2, reach=Reach(memory=4)))[0], hidden)


def test_weights_that_changed_are_noticed() -> None:
    model = build(shape())
    engine, tokens = model.frozen(), some_tokens(1, 3)
    memory = engine.start(reach=Reach(memory=4))
    with torch.no_grad():
        model.blocks[1].attention.out.weight.mul_(2)
    for read in (lambda: engine(tokens, memory), lambda: engine.start(reach=Reach(memory=4))):
        with pytest.raises(InputError, match="changed since it was frozen; call model.frozen"):
            read()
    again = model.frozen()
    assert_close(again(tokens, memory)[0], model(tokens, model.start(reach=Reach(memory=4)))[0])


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("training", [True, False])
def test_a_step_of_any_optimizer_is_noticed(optimizer: str, training: bool) -> None:
    """Fused steps raise no version of the weights."""
    model, tokens = build(shape()).train(training), some_tokens(1, 3)
    engine, bystander = model.frozen(), build(shape(), seed=1).frozen()
    memory = engine.start(reach=Reach(memory=4))
    hidden, _ = model(tokens, model.start(reach=Reach(memory=4)))
    model.nats(hidden, tokens).mean().backward()
    for one in build_optimizers(model, small_recipe(optimizer=optimizer).train):
        one.step()
    for twin in (engine, copy.deepcopy(engine)):
        with pytest.raises(InputError, match="changed since it was frozen"):
            twin(tokens, memory)
    bystander(tokens, bystander.start(reach=Reach(memory=4)))


def test_what_is_replaced_in_the_model_leaves_the_engine_as_it_was() -> None:
    model, other, tokens = build(shape()), build(shape(), seed=1), some_tokens(1, 3)
    engine = model.frozen()
    memory = engine.start(reach=Reach(memory=4))
    wanted, _ = engine(tokens, memory)
    model.load_state_dict(other.state_dict(), assign=True)
    model.positions.train()
    assert_close(engine(tokens, memory)[0], wanted, rtol=0, atol=0)
    with torch.no_grad():
        engine.model.blocks[0].attention.out.weight.data = torch.zeros(8, 8, dtype=torch.float64)
    with pytest.raises(InputError, match="changed since it was frozen"):
        engine(tokens, memory)


def test_engines_can_be_copied_and_sent() -> None:
    engine, tokens = build(shape()).frozen(), some_tokens(1, 3)
    memory = engine.start(reach=Reach(memory=4))
    wanted, _ = engine(tokens, memory)
    for twin in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):  # noqa: S301
        assert_close(twin(tokens, memory)[0], wanted, rtol=0, atol=0)


def test_a_copy_of_one_lane_holds_that_lane_alone() -> None:
    engine = build(shape()).frozen()
    _, batch = engine(some_tokens(64, 9), engine.start(lanes=64, reach=Reach(memory=40)))
    sent = pickle.dumps(batch.select([6]))
    assert len(sent) < len(pickle.dumps(batch)) / 20
    (part,) = pickle.loads(sent).parts  # noqa: S301
    assert part.buffer.storage.shape[2::2] == (1, part.size)  # one lane, and no slots behind it


def test_a_lane_that_begins_anew_takes_what_the_fresh_one_has_read() -> None:
    model = build(shape("sinusoidal"))
    read = {}
    for name in ENGINES:
        reader = engine_of(name, model)
        _, old = reader(some_tokens(2, 3), reader.start(lanes=2, reach=Reach(memory=0)))
        _, fresh = reader(some_tokens(2, 5), reader.start(lanes=2, reach=Reach(memory=0)))
        renewed = old.renewed(torch.tensor([True, False]), fresh)
        assert renewed.seen.tolist() == [5, 3]
        read[name], _ = reader(some_tokens(2, 4), renewed)
        with pytest.raises(InputError):
            old.renewed(torch.tensor([True, False]), reader.start(lanes=2, reach=Reach(memory=1)))
    assert_close(read["frozen"], read["training"])


@pytest.mark.parametrize("int8", [False, True])
def test_reading_with_autocast_leaves_nothing_behind(int8: bool) -> None:
    model, tokens = build(shape()).float(), some_tokens(1, 3)
    engine, alone = (model.frozen(int8=int8 and FBGEMM) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        begin = engine.start(reach=Reach(memory=8))
        engine(tokens[:, :1], engine(tokens, begin)[1])
    assert begin.dtype == torch.float32
    wanted, after = alone(tokens, alone.start(reach=Reach(memory=8)))
    assert_close(engine(tokens, engine.start(reach=Reach(memory=8)))[0], wanted)
    engine(tokens[:, :1], after)


def test_tables_of_relative_keys_do_not_pile_up() -> None:
    engine = build(shape()).frozen()
    for clamp in range(1, 100):
        engine(some_tokens(1, 9), engine.start(reach=Reach(memory=8, clamp=clamp)))
    assert len(engine._relative) <= frozen.MOST_TABLES


def test_what_cannot_be_projected_or_read_is_refused() -> None:
    engine, tokens = build(shape()).frozen(), some_tokens(1, 3)
    memory = engine.start(reach=REACH)
    for wrong in (
        None,
        build(shape()).float().start(reach=REACH),
        build(shape(layers=1)).start(reach=REACH),
    ):
        with pytest.raises(InputError, match="project wants"):
            engine.project(wrong)
    for call in (
        lambda: engine(tokens.tolist(), memory),
        lambda: engine.start(lanes=2.5, reach=REACH),
        lambda: memory.select("a"),
        lambda: memory.select(None),
    ):
        with pytest.raises(InputError):
            call()
    assert memory.select(torch.tensor([0], dtype=torch.int16)).lanes == 1


def test_a_memory_of_the_other_kind_is_refused() -> None:
    model, tokens = build(shape()), some_tokens(1, 3)
    states, reach = model.start(reach=Reach(memory=4)), Reach(memory=4)
    with pytest.raises(InputError, match="reads on with a KVMemory; found StateMemory"):
        model.frozen()(tokens, states)
    with pytest.raises(InputError, match="reads on with a StateMemory; found KVMemory"):
        model(tokens, model.frozen().start(reach=reach))


def test_what_is_read_depends_on_no_other_reader() -> None:
    """Tables of relative keys are shared: one that another reader had made larger must not change a bit."""
    config, tokens, reach = shape(), some_tokens(1, 3), Reach(memory=40, clamp=9)
    alone, busy = build(config).frozen(), build(config).frozen()
    busy(some_tokens(1, 30), busy.start(reach=reach))
    assert_close(
        busy(tokens, busy.start(reach=reach))[0], alone(tokens, alone.start(reach=reach))[0], rtol=0, atol=0
    )


def test_recurrent_models_freeze_the_same_way() -> None:
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(vocab=13, width=8, dropout=0.5)).double().train()
    engine, tokens = model.frozen(), some_tokens(2, 5)
    memory = engine.start(lanes=2, reach=Reach(memory=1))
    hidden, after = engine(tokens, memory)
    assert_close(engine(tokens, memory)[0], hidden, rtol=0, atol=0)
    assert not hidden.requires_grad
    assert model.training
    assert_close(model.eval()(tokens, model.start(lanes=2, reach=Reach(memory=1)))[0], hidden)
    assert engine.frozen() is engine
    evaluated = model.frozen()
    model.train()
    with pytest.raises(InputError, match="in training mode again"):
        evaluated(tokens, memory)
    assert engine.project(after) is after
