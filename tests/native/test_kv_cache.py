"""Keys and values in fewer bits: the numbers are near the exact ones, the memory stays a value, the laws hold.

A last bit may choose another step when a number is rounded, so where two ways of reading are compared, nearly all
tokens agree to float precision, and all to what rounding costs.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from segue import native
from segue.config import KVCache, Reach, RecurrentConfig, UniversalConfig, XLConfig
from segue.errors import InputError
from segue.nn.kv_memory import KVMemory
from segue.nn.kv_precision import packed, unpacked
from segue.nn.positions import RelativeKeys
from segue.nn.recurrent import RecurrentModel
from segue.nn.universal import UniversalTransformer
from support import (
    ENCODINGS,
    build,
    in_torch_alone,
    read_in_pieces,
    shape,
    shapes,
    some_tokens,
    whole_reaches,
)

LENGTH = 14
BITS: tuple[KVCache, ...] = ("float16", "int8")
PRECISION = pytest.mark.parametrize("precision", BITS)
COMPILED = pytest.mark.skipif(native.library() is None, reason=native.why())
ERROR = {"float16": 2**-11, "int8": 0.5 / 127}
"""Of a number, at most: relative to itself, or to the largest of its row."""


@st.composite
def wide_shapes(draw: st.DrawFn) -> XLConfig:
    """Head widths beyond some vectors of any processor, and what is left over."""
    sizes = {"heads": draw(st.integers(1, 3)), "head_width": draw(st.integers(2, 80)), "width": 24}
    return shape(draw(st.sampled_from(ENCODINGS)), **sizes, norm=draw(st.sampled_from(["post", "pre"])))


@PRECISION
@given(st.integers(1, 70), st.sampled_from([torch.float32, torch.float64]), st.integers(-12, 4))
def test_a_row_is_rounded_within_its_error(precision: str, width: int, kind: torch.dtype, power: int) -> None:
    rows = torch.randn(3, 5, width, dtype=kind, generator=torch.Generator().manual_seed(width)) * 10.0**power
    stored = getattr(torch, precision)
    found = unpacked(packed(rows, stored), kind)
    assert found.dtype == kind
    of = rows.abs().amax(dim=-1, keepdim=True) if precision == "int8" else rows.abs()
    least = 2**-25 if precision == "float16" else 0.0  # half of the smallest step
    assert bool(((found - rows).abs() <= of * ERROR[precision] * 1.0001 + least).all())


@PRECISION
def test_numbers_at_the_edges(precision: str) -> None:
    stored = getattr(torch, precision)
    rows = torch.tensor([[0.0, -0.0], [1e30, -1.0], [float("nan"), 1.0], [65504.0, -65504.0]])
    found = unpacked(packed(rows, stored), torch.float32)
    assert found[0].tolist() == [0, 0]
    assert found[1].isfinite().all()
    assert found[2, 0].isnan()
    assert_close(found[3], rows[3], rtol=1e-6, atol=0)
    assert unpacked(packed(torch.zeros(2, 0, 3), stored), torch.float32).shape == (2, 0, 3)
    assert_close(unpacked(packed(torch.ones(1, 3), stored), torch.float32), torch.ones(1, 3))


@COMPILED
@PRECISION
@given(wide_shapes(), st.integers(1, 4), st.data())
@settings(max_examples=15)
def test_native_steps_are_those_of_torch(
    precision: KVCache, config: XLConfig, lanes: int, data: st.DataObject
) -> None:
    """Rows and numbers of one step, in float64, where no last bit of a float chooses a step."""
    model, memory_length = build(config), data.draw(st.integers(0, 90))
    engine, other = (model.frozen(kv_cache=precision) for _ in range(2))
    clamps = st.none() | st.integers(1, 90) if config.position_encoding.relative else st.none()
    clamp = data.draw(clamps)
    reach = Reach(memory=memory_length, clamp=clamp, span=data.draw(st.integers(1, memory_length + 1)))
    _, memory = engine(
        some_tokens(lanes, data.draw(st.integers(2, 60))), engine.start(lanes=lanes, reach=reach)
    )
    (found, after), (wanted, other_after) = (
        one(some_tokens(lanes, 1, seed=1), memory) for one in (engine, in_torch_alone(other))
    )
    assert engine._native is not None
    largest = float(wanted.abs().max())
    assert_close(found, wanted, rtol=1e-9, atol=1e-9 * largest)
    for ours, others in zip(after.rows, other_after.rows, strict=True):
        assert torch.equal(ours, others)
    single, _ = model.float().frozen(kv_cache=precision)(some_tokens(lanes, 1, seed=1), memory)
    assert_close(single.double(), wanted, rtol=0, atol=0.02 * largest)


@PRECISION
@pytest.mark.parametrize("encoding", ["xl", "shaw"])
@pytest.mark.parametrize("clamp", [None, 9])
@torch.no_grad()
def test_a_distance_has_the_same_rounded_row_in_every_table(
    precision: KVCache, encoding: str, clamp: int | None
) -> None:
    """However many keys there are, and whether the clamp is reached: rows differ by one row for all distances."""
    engine = build(shape(encoding, heads=2, head_width=20)).frozen(kv_cache=precision)
    exact, kind = engine.model.relative_keys(16, clamp), getattr(torch, precision)
    tables = [engine._relative_keys(keys, clamp) for keys in (4, 16, 64)]
    for layer, wanted in enumerate(exact):
        few, some, many = (table[layer] for table in tables)
        assert isinstance(wanted, RelativeKeys)
        assert isinstance(some, RelativeKeys)
        assert isinstance(many, RelativeKeys)
        assert many.stored is not None
        for one in (few, some, many):
            assert isinstance(one, RelativeKeys)
            assert one.stored is not None
            assert one.stored.rows.dtype == kind
            stored, near = unpacked(one.stored.rows, torch.float64), one.rows.transpose(0, 1)
            farthest = 0 if one.stored.farthest is None else one.stored.farthest[:, None]
            assert torch.equal(near, stored - farthest)
            shared = min(stored.size(1), 3)
            assert_close(stored[:, -shared:], unpacked(many.stored.rows, torch.float64)[:, -shared:])
        largest = float(some.rows.abs().max())
        assert 0 < (some.rows - wanted.rows).abs().max() <= 4 * ERROR[precision] * largest


@PRECISION
@torch.no_grad()
def test_the_farthest_row_alone_is_not_kept(precision: KVCache) -> None:
    """Where all distances share one row, it would move all scores alike, and what is in it must not show."""
    engine = build(shape("shaw", max_distance=1)).frozen(kv_cache=precision)
    for relative in engine._relative_keys(16, None):
        assert isinstance(relative, RelativeKeys)
        assert relative.stored is not None
        assert relative.stored.rows.size(1) == 0
        assert relative.stored.farthest is None


@PRECISION
@given(wide_shapes(), st.integers(1, 4))
@settings(max_examples=15)
def test_hidden_states_are_near_the_exact_ones(precision: KVCache, config: XLConfig, lanes: int) -> None:
    """With one layer the error of what is gathered is at most that of the values and of their weights."""
    model = build(config.model_copy(update={"layers": 1, "norm": "pre"}))
    exact, rounded = model.frozen(), model.frozen(kv_cache=precision)
    tokens, reach = some_tokens(lanes, 40), Reach(memory=40)
    wanted, _ = read_in_pieces(exact, tokens, exact.start(lanes=lanes, reach=reach), [30, *range(31, 40)])
    found, _ = read_in_pieces(rounded, tokens, rounded.start(lanes=lanes, reach=reach), [30, *range(31, 40)])
    apart = (found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert 0 < apart < {"float16": 0.005, "int8": 0.05}[precision]


@PRECISION
@given(st.data())
@settings(max_examples=25)
def test_where_the_seams_fall_makes_no_difference(precision: KVCache, data: st.DataObject) -> None:
    """In one layer, whose keys and values are the same to the last bits wherever segments are cut."""
    config = data.draw(shapes()).model_copy(update={"layers": 1})
    if config.combine == "layers":
        return
    model = build(config).frozen(kv_cache=precision)
    begin = model.start(lanes=2, reach=data.draw(whole_reaches(config, LENGTH)))
    tokens = some_tokens(2, LENGTH)
    whole, after = model(tokens, begin)
    for places in ([5], [1, 2, 9], [9], list(range(1, LENGTH))):
        pieces, after_pieces = read_in_pieces(model, tokens, begin, places)
        assert_close(pieces, whole, rtol=1e-9, atol=1e-9)
        assert_close(after_pieces.rows, after.rows, rtol=0, atol=0)


@PRECISION
def test_deep_in_the_stack_seams_show_as_little_as_rounding(precision: KVCache) -> None:
    model = build(shape(width=32, heads=4, layers=4)).float()
    tokens, reach = some_tokens(2, 40), Reach(memory=40)

    def read(kv_cache: KVCache, cuts: list[int]) -> Tensor:
        engine = model.frozen(kv_cache=kv_cache)
        return read_in_pieces(engine, tokens, engine.start(lanes=2, reach=reach), cuts)[0]

    whole = read(precision, [])
    lost = (whole - read("exact", [])).abs().max()
    for cuts in ([7], list(range(1, 40))):
        apart = (read(precision, cuts) - whole).abs().amax(dim=-1)
        assert (apart < 1e-3 * whole.abs().max()).float().mean() > 0.9
        assert apart.max() < 3 * lost


@PRECISION
def test_lanes_of_different_lengths_are_read_as_alone(precision: KVCache) -> None:
    engine = build(shape(heads=2, head_width=20)).float().frozen(kv_cache=precision)
    alone = [
        engine(some_tokens(1, 3 + 9 * n, seed=n), engine.start(reach=Reach(memory=30)))[1] for n in range(4)
    ]
    together, _ = engine(some_tokens(4, 1, seed=9), KVMemory.join(alone))
    for lane, memory in enumerate(alone):
        one, _ = engine(some_tokens(4, 1, seed=9)[lane : lane + 1], memory)
        assert_close(together[lane : lane + 1], one, rtol=1e-5, atol=1e-5)


@PRECISION
def test_a_memory_stays_a_value(precision: KVCache, tmp_path: Path) -> None:
    """Forked, selected, saved and pickled, it reads on as if nothing had happened."""
    engine = build(shape(heads=2, head_width=10)).float().frozen(kv_cache=precision)
    _, memory = engine(some_tokens(2, 9), engine.start(lanes=2, reach=Reach(memory=20)))
    wanted, _ = engine(some_tokens(2, 1), memory)
    engine(some_tokens(2, 1, seed=5), memory)  # a fork that goes elsewhere
    assert torch.equal(engine(some_tokens(2, 1), memory)[0], wanted)
    save_file(memory.tensors(), tmp_path / "memory.safetensors")
    loaded = KVMemory.from_tensors(load_file(tmp_path / "memory.safetensors"), memory.reach)
    assert torch.equal(engine(some_tokens(2, 1), loaded)[0], wanted)
    swapped, _ = engine(some_tokens(2, 1).flip(0), memory.select([1, 0]))
    assert torch.equal(swapped.flip(0), wanted)


@PRECISION
def test_a_stream_goes_on_with_the_option_and_without_it(precision: KVCache) -> None:
    model = build(shape(heads=2, head_width=10)).float()
    exact, rounded = model.frozen(), model.frozen(kv_cache=precision)
    _, memory = exact(some_tokens(2, 9), exact.start(lanes=2, reach=Reach(memory=20)))
    small = rounded.project(memory)
    assert small.dtype == getattr(torch, precision)
    back = exact.project(small)
    assert back.dtype == torch.float32
    for found, wanted in zip(back.rows, memory.rows, strict=True):
        assert_close(found, wanted, rtol=0, atol=ERROR[precision] * float(wanted.abs().max()))
    assert_close(exact(some_tokens(2, 1), back)[0], rounded(some_tokens(2, 1), small)[0], rtol=0, atol=0.05)
    for engine, other in ((exact, small), (rounded, memory)):
        with pytest.raises(InputError, match=r"this engine keeps keys and values as .*: use project"):
            engine(some_tokens(2, 1), other)
    with pytest.raises(InputError, match="join wants memories of one model"):
        KVMemory.join([memory, small])


@PRECISION
def test_it_holds_as_few_bytes_as_it_says(precision: KVCache) -> None:
    engine = build(shape(heads=2, head_width=60)).float().frozen(kv_cache=precision)
    _, memory = engine(some_tokens(1, 8), engine.start(reach=Reach(memory=8)))
    assert sum(row.nbytes for row in memory.rows) == 2 * 2 * 8 * 2 * {"float16": 120, "int8": 64}[precision]


@COMPILED
@PRECISION
def test_the_number_of_threads_changes_no_bit(precision: KVCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.nn.native_step.WORK_OF_A_THREAD", 1)
    engine = build(shape(heads=4, head_width=24, width=40)).float().frozen(kv_cache=precision)
    _, memory = engine(some_tokens(3, 30), engine.start(lanes=3, reach=Reach(memory=30)))
    read = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        read.append(engine(some_tokens(3, 1), memory)[0])
    torch.set_num_threads(1)
    assert torch.equal(read[0], read[1])
    assert torch.equal(read[0], read[2])


@COMPILED
@PRECISION
def test_what_is_no_number_in_one_lane_stays_there(precision: KVCache) -> None:
    model = build(shape(heads=2, head_width=16, width=16)).float()
    tokens, reach = torch.tensor([[1], [2], [3]]), Reach(memory=4)
    engine = model.frozen(kv_cache=precision)
    wanted, _ = engine(tokens, engine.start(lanes=3, reach=reach))
    with torch.no_grad():
        model.vocabulary.tables[0][2] = float("nan")
    engine = model.frozen(kv_cache=precision)
    found, _ = engine(tokens, engine.start(lanes=3, reach=reach))
    assert torch.isnan(found[1]).all()
    assert torch.equal(found[[0, 2]], wanted[[0, 2]])


def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(InputError, match="kv_cache should be exact, float16 or int8; found 'int4'"):
        build(shape()).frozen(kv_cache="int4")  # type: ignore[arg-type]
    for model in (
        RecurrentModel(RecurrentConfig(vocab=9, width=8)),
        UniversalTransformer(UniversalConfig(vocab=9, width=8, heads=2, steps=2)),
    ):
        with pytest.raises(
            InputError, match="a KV cache in int8 is for Transformer-XL; a .* has no such engine"
        ):
            model.frozen(kv_cache="int8")
