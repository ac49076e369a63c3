"""The model as a whole: dropout where the paper has it, the published start, half precision, what it refuses."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, XLConfig
from segue.errors import SegueError
from segue.nn.memory import Memory
from segue.nn.xl import TransformerXL
from support import ENCODINGS, build, shape, some_tokens


def test_the_example_of_the_readme_in_short() -> None:
    model = TransformerXL(XLConfig(vocab=256, width=16, layers=2, heads=2))
    memory = model.start(lanes=4, reach=Reach(memory=5))
    tokens = torch.randint(0, 256, (4, 7))
    hidden, memory = model(tokens, memory)
    assert hidden.shape == (4, 7, 16)
    assert [tuple(state.shape) for state in memory.states] == [(4, 5, 16)] * 2
    assert model.nats(hidden, tokens).shape == (4, 7)
    assert model.logprobs(hidden).shape == (4, 7, 256)


def test_with_layer_embeddings_memory_holds_what_is_added_to_a_layers_input() -> None:
    model = build(shape(layer_embeddings=True, layers=3))
    plain = TransformerXL(shape(layers=3)).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    tokens = some_tokens(2, 6)
    _, memory = model(tokens, model.start(lanes=2, reach=Reach(memory=6)))
    _, without = plain(tokens, plain.start(lanes=2, reach=Reach(memory=6)))
    assert_close(memory.states[0], without.states[0])
    added = 8**0.5 * model.layer_tables[0][tokens]  # to what the first layer, which adds nothing, has made
    assert_close(memory.states[1], without.states[1] + added)


def test_layer_embeddings_begin_with_zero_and_change_nothing_then() -> None:
    torch.manual_seed(0)
    plain = TransformerXL(shape(layers=3))
    model = TransformerXL(shape(layers=3, layer_embeddings=True))
    model.load_state_dict(plain.state_dict(), strict=False)
    assert [tuple(table.shape) for table in model.layer_tables] == [(13, 8)] * 2
    tokens, reach = some_tokens(1, 6), Reach(memory=4)
    assert_close(model(tokens, model.start(reach=reach))[0], plain(tokens, plain.start(reach=reach))[0])


def test_dropout_is_where_the_paper_has_it() -> None:
    model = TransformerXL(shape(dropout=0.3, attention_dropout=0.2))
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}
    wanted = {"dropout": 0.3, "positions.dropout": 0.3}  # embedding and output; positions
    for block in ("blocks.0", "blocks.1"):
        wanted[f"{block}.attention.dropout"] = 0.2
        wanted[f"{block}.dropout"] = 0.3  # after attention, after the feed-forward
        wanted[f"{block}.feed_forward.dropout"] = 0.3  # inside it
    assert rates == wanted


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_dropout_changes_training_and_not_reading(encoding: str) -> None:
    model = build(shape(encoding, dropout=0.5, attention_dropout=0.5))
    tokens, memory = some_tokens(1, 6), model.start(reach=Reach(memory=4))
    assert_close(model(tokens, memory)[0], model(tokens, memory)[0], rtol=0, atol=0)
    model.train()
    first, after = model(tokens, memory)
    second, _ = model(tokens, memory)
    assert not torch.allclose(first, second)
    if encoding != "per-layer":  # which adds a position after it
        assert (after.states[0] == 0).any()  # what is remembered is what the layer got: after dropout


def test_the_published_start() -> None:
    torch.manual_seed(1)
    config = XLConfig(vocab=300, width=64, layers=2, heads=4, cutoffs=(100, 200), divisor=2, tied=False)
    model = TransformerXL(config)
    for name, weight in model.named_parameters():
        mean, spread = float(weight.detach().mean()), float(weight.detach().std())
        if "norm.weight" in name:
            assert (mean, spread) == (pytest.approx(1, abs=0.02), pytest.approx(0.02, rel=0.3)), name
        elif "vocabulary" in name and "projections" in name:
            assert spread == pytest.approx(0.01, rel=0.2), name
        elif "bias" in name and "positions" not in name:
            assert not weight.any(), name
        else:
            assert (mean, spread) == (pytest.approx(0, abs=0.005), pytest.approx(0.02, rel=0.2)), name


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_half_precision_reads_without_nan(encoding: str, kind: torch.dtype) -> None:
    model = build(shape(encoding)).to(kind)
    memory: Memory = model.start(lanes=2, reach=Reach(memory=6))
    for _ in range(3):
        hidden, memory = model(some_tokens(2, 5), memory)
        assert hidden.dtype == memory.rows[0].dtype == kind
        assert model.nats(hidden, some_tokens(2, 5)).isfinite().all()


@pytest.mark.parametrize("chunk", [2**24, 8])
def test_autocast_trains(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from segue.nn import vocab

    monkeypatch.setattr(vocab, "LOGITS_AT_ONCE", chunk)
    monkeypatch.setattr(vocab, "MIN_ROWS", 1)
    model = build(shape(cutoffs=(4,), divisor=2)).float()
    memory: Memory = model.start(lanes=2, reach=Reach(memory=6))
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            hidden, memory = model(some_tokens(2, 5), memory)
            nats = model.nats(hidden, some_tokens(2, 5))
        nats.mean().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_a_fully_padded_lane_is_defined_and_keeps_its_memory() -> None:
    model, tokens = build(shape()), some_tokens(2, 5)
    for memory in (
        model.start(lanes=2, reach=Reach(memory=3)),
        model(tokens, model.start(lanes=2, reach=Reach(memory=3)))[1],
    ):
        hidden, after = model(tokens, memory, lengths=torch.tensor([0, 5]))
        assert not hidden[0].any()
        assert hidden.isfinite().all()
        assert after.seen.tolist() == [memory.seen[0], memory.seen[1] + 5]
        kept = after.select([0])
        assert_close(kept.rows, memory.select([0]).rows, rtol=0, atol=0)


def test_where_documents_and_padding_are_not_used_no_lane_has_a_mask_of_its_own() -> None:
    from segue.nn.layout import SegmentLayout
    from segue.nn.mask import causal_mask

    lengths, device = torch.tensor([4, 4]), torch.device("cpu")
    plain = causal_mask(SegmentLayout(2, 3), 4, lengths, None, device)
    assert plain.masked(slice(0, 3), slice(0, 7)) is None
    assert plain.dense(device).shape == (3, 7)
    ragged = causal_mask(SegmentLayout(2, 3), 4, torch.tensor([4, 1]), None, device)
    assert ragged.masked(slice(0, 3), slice(0, 7)) is not None
    assert ragged.dense(device).shape == (2, 1, 3, 7)


def refuse(match: str, call: object, *values: object, **named: object) -> None:
    assert callable(call)
    with pytest.raises(SegueError, match=match) as caught:
        call(*values, **named)
    assert "\n" not in str(caught.value)


def test_bad_segments_are_refused() -> None:
    model, tokens = build(shape()), some_tokens(2, 5)
    memory = model.start(lanes=2, reach=Reach(memory=3))
    refuse("T = 0", model, tokens[:, :0], memory)
    refuse("int64 or int32.*found torch.float64", model, tokens.double(), memory)
    refuse("found torch.bool", model, tokens.bool(), memory)
    refuse(r"shape \(5,\)", model, tokens[0], memory)
    refuse("memory has 2 lanes and the tokens 1", model, tokens[:1], memory)
    refuse("between 0 and 5", model, tokens, memory, lengths=torch.tensor([-1, 5]))
    refuse("between 0 and 5", model, tokens, memory, lengths=torch.tensor([6, 5]))
    refuse("2 integers", model, tokens, memory, lengths=torch.tensor([2.0, 5.0]))
    refuse("2 integers", model, tokens, memory, lengths=torch.tensor([2]))
    refuse("starts should be bool", model, tokens, memory, starts=torch.ones(2, 5))
    refuse("starts should be bool", model, tokens, memory, starts=torch.ones(2, 4).bool())
    refuse("lanes should be 1", model.start, lanes=0, reach=Reach(memory=1))


def test_bad_memories_are_refused() -> None:
    model, tokens, reach = build(shape()), some_tokens(1, 5), Reach(memory=3)
    for changes in ({"width": 4}, {"layers": 1}):
        other = build(shape(**changes)).start(reach=reach)
        refuse(r"memory has 2 layers of rows \(8,\); found", model, tokens, other)
    heads = build(shape(heads=4))
    refuse("reads on with a StateMemory; found KVMemory", model, tokens, heads.frozen().start(reach=reach))
    refuse("memory is torch.float64", build(shape()).float(), tokens, model.start(reach=reach))
    zeros = model.start(reach=Reach(memory=3, initial="zeros"))
    refuse("zeros can begin at a segment's first", model, tokens, zeros, starts=torch.arange(5)[None] == 2)


@pytest.mark.parametrize("divisor", [1, 2])
@pytest.mark.parametrize("bad", [-1, 13])
def test_tokens_out_of_range_are_refused(bad: int, divisor: int) -> None:
    model = build(shape(cutoffs=(4, 9), divisor=divisor))
    tokens: Tensor = some_tokens(1, 4)
    tokens[0, 2] = bad
    refuse(f"between 0 and 12; found {bad}", model.check, tokens)
    refuse(f"between 0 and 12; found {bad}", model, tokens, model.start(reach=Reach(memory=3)))
    model.check(some_tokens(1, 4))


@pytest.mark.parametrize("encoding", ["learned", "per-layer"])
def test_reading_beyond_a_table_of_positions_is_refused(encoding: str) -> None:
    model = build(shape(encoding, max_positions=8))
    hidden, memory = model(some_tokens(1, 6), model.start(reach=Reach(memory=6)))
    model(some_tokens(1, 2), memory)
    refuse("position 8 lies beyond the table of 8", model, some_tokens(1, 3), memory)
    padded = some_tokens(1, 3), memory
    model(*padded, lengths=torch.tensor([2]))  # padding has no position
    isolated = model.start(reach=Reach(memory=0, positions="restart"))
    first, isolated = model(some_tokens(1, 8), isolated)
    second, _ = model(some_tokens(1, 8), isolated)
    assert_close(first, second, rtol=0, atol=0)
    assert hidden.isfinite().all()


def test_a_clamp_is_for_relative_encodings() -> None:
    refuse("clamp 4 limits distances", build(shape("sinusoidal")).start, reach=Reach(memory=3, clamp=4))
