"""The Universal Transformer as encoder-decoder and as encoder."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import UniversalEncoderConfig, UniversalSeq2SeqConfig
from segue.errors import SegueError
from segue.nn.halting import ponder_cost
from segue.nn.universal_encoder import UniversalEncoder
from segue.nn.universal_seq2seq import UniversalSeq2Seq
from support import EXAMPLES, VOCAB, some_tokens

FEW = settings(max_examples=EXAMPLES // 3)


def made_uneven(model: Any) -> Any:
    """In float64, with weights so large that tokens halt at different steps."""
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if name.endswith("unit.weight"):
                parameter.copy_(torch.randn_like(parameter))
                parameter[:, 1::2] = (
                    0  # cosines of positions and steps, which are nearly the same for all tokens
                )
    return model


def build(**changes: object) -> UniversalSeq2Seq:
    torch.manual_seed(0)
    small = {"vocab": VOCAB, "width": 8, "heads": 2, "feedforward": 12, "steps": 4, "halt_bias": 0.0}
    built: UniversalSeq2Seq = made_uneven(UniversalSeq2Seq(UniversalSeq2SeqConfig(**{**small, **changes})))
    return built


configs = st.fixed_dictionaries(
    {
        "halting": st.sampled_from(["none", "act", "listing"]),
        "norm": st.sampled_from(["post", "pre"]),
        "encoding": st.sampled_from(["sinusoidal", "xl"]),
        "source_vocab": st.sampled_from([0, VOCAB]),
    }
)


def read(model: UniversalSeq2Seq, source: Tensor, target: Tensor, lengths: Tensor | None = None) -> Tensor:
    hidden, _ = model(target, model.start(source, lengths))
    return hidden


def signal(places: Tensor, step: int) -> Tensor:
    """P[t] as the paper prints it: sin and cos of the position and of the step, both counted from 1."""
    rows = torch.zeros(len(places), 8, dtype=torch.float64)
    for column in range(8):
        rate = 10000 ** ((column - column % 2) / 8)
        wave = torch.cos if column % 2 else torch.sin
        rows[:, column] = wave((places + 1) / rate) + wave(torch.tensor((step + 1) / rate))
    return rows


def test_without_halting_it_is_the_printed_recurrence() -> None:
    """H = block(H + P[t]) on both sides; the decoder attends to the encoder's last state in each step."""
    model, source, target = build(steps=3), some_tokens(2, 5), some_tokens(2, 4, 1)
    _, mask = model.encode(source)
    hidden = model.vocabulary.embed(source.T)
    for step in range(3):
        hidden = hidden + signal(torch.arange(5), step)[:, None]
        hidden = model.encoder[0](hidden, hidden[:0], None, mask)
    assert_close(model.encode(source)[0], hidden)
    memory = model.start(source)
    out = model.vocabulary.embed(target.T)
    causal = type(mask)(0, 4)
    cross = type(mask)(5, 4, causal=False)
    for step in range(3):
        out = out + signal(torch.arange(4), step)[:, None]
        asked = memory.sources[0]._replace(mask=cross)
        assert_close(asked.keys_values, model.decoder[0].project_source(hidden))
        out = model.decoder[0](out, out[:0], None, causal, asked)
    assert_close(read(model, source, target), out.transpose(0, 1))


@FEW
@given(configs, st.lists(st.integers(1, 5), unique=True).map(sorted))
def test_where_a_target_is_cut_makes_no_difference(changes: dict[str, object], cuts: list[int]) -> None:
    model = build(**changes)
    source, target, lengths = some_tokens(2, 5), some_tokens(2, 6, 1), torch.tensor([5, 2])
    with torch.no_grad():
        wanted, _, whole = model.pondered(target, model.start(source, lengths))
        memory, pieces, steps = model.start(source, lengths), [], []
        for piece in torch.tensor_split(target, cuts, dim=1):
            hidden, memory, part = model.pondered(piece, memory)
            pieces.append(hidden)
            steps.append(part.steps)
        assert_close(torch.cat(pieces, dim=1), wanted)
        assert torch.equal(torch.cat(steps, dim=1), whole.steps)
        chosen, more = memory.select([1, 0, 1]), some_tokens(2, 1, 5)
        assert_close(model(more[[1, 0, 1]], chosen)[0], model(more, memory)[0][[1, 0, 1]])
        assert torch.equal(chosen.pondering.steps, memory.pondering.steps[[1, 0, 1]])


@FEW
@given(configs)
def test_padding_ponders_nothing_and_changes_nothing(changes: dict[str, object]) -> None:
    model = build(**changes)
    source, target = some_tokens(3, 6), some_tokens(3, 5, 1)
    lengths, targets = torch.tensor([6, 1, 4]), torch.tensor([2, 5, 0])
    with torch.no_grad():
        memory = model.start(source, lengths)
        hidden, after, pondering = model.pondered(target, memory, lengths=targets)
        assert torch.equal(memory.pondering.steps > 0, torch.arange(6) < lengths[:, None])
        assert torch.equal(pondering.steps > 0, torch.arange(5) < targets[:, None])
        more = some_tokens(3, 2, 3)
        onward, _ = model(more, after)
        for lane in range(3):
            alone = model.start(source[lane : lane + 1, : lengths[lane]])
            assert torch.equal(alone.pondering.steps[0], memory.pondering.steps[lane, : lengths[lane]])
            if targets[lane]:
                own, alone, steps = model.pondered(target[lane : lane + 1, : targets[lane]], alone)
                assert_close(hidden[lane : lane + 1, : targets[lane]], own)
                assert torch.equal(steps.steps[0], pondering.steps[lane, : targets[lane]])
            assert_close(onward[lane : lane + 1], model(more[lane : lane + 1], alone)[0])


@pytest.mark.parametrize("halting", ["act", "listing"])
def test_every_weight_gets_a_gradient_and_tokens_differ(halting: str) -> None:
    model, source, target = build(halting=halting), some_tokens(3, 6), some_tokens(3, 5, 1)
    memory = model.start(source)
    hidden, _, pondering = model.pondered(target, memory)
    (model.nats(hidden, target).mean() + ponder_cost(memory.pondering, pondering)).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
    assert len(set(memory.pondering.steps.flatten().tolist())) > 1
    assert len(set(pondering.steps.flatten().tolist())) > 1


def test_parameters_do_not_grow_with_steps() -> None:
    sizes = {sum(weight.numel() for weight in build(steps=steps).parameters()) for steps in (2, 3, 9)}
    assert len(sizes) == 1


def build_encoder(**changes: object) -> UniversalEncoder:
    torch.manual_seed(0)
    small = {"vocab": VOCAB, "width": 8, "heads": 2, "feedforward": 12, "steps": 4, "halt_bias": 0.0}
    built: UniversalEncoder = made_uneven(UniversalEncoder(UniversalEncoderConfig(**{**small, **changes})))
    return built


@FEW
@given(st.sampled_from(["none", "act", "listing"]), st.lists(st.integers(1, 6), min_size=2, max_size=3))
def test_an_encoders_padding_ponders_nothing_and_changes_nothing(halting: str, counts: list[int]) -> None:
    model, texts = build_encoder(halting=halting), some_tokens(len(counts), 6)
    mask = (torch.arange(6) < torch.tensor(counts)[:, None]).long()
    types = torch.tensor([[0, 0, 1, 1, 1, 1]]).expand_as(mask)
    with torch.no_grad():
        encoded, pondering = model.pondered(texts, mask, types)
        assert torch.equal(pondering.steps > 0, mask.bool())
        for text, count in enumerate(counts):
            row = slice(text, text + 1)
            alone, own = model.pondered(texts[row, :count], token_type_ids=types[row, :count])
            assert_close(encoded.last_hidden_state[row, :count], alone.last_hidden_state)
            assert_close(encoded.pooler_output[row], alone.pooler_output)
            assert torch.equal(pondering.steps[row, :count], own.steps)
            assert not encoded.last_hidden_state[text, count:].any()


def test_an_encoder_without_halting_is_the_printed_recurrence() -> None:
    model, texts = build_encoder(steps=3), some_tokens(2, 5)
    hidden = model.norm(model.words(texts) + model.types.weight[0]).transpose(0, 1)
    _, mask = build().encode(texts)
    for step in range(3):
        hidden = hidden + signal(torch.arange(5), step)[:, None]
        hidden = model.blocks[0](hidden, hidden[:0], None, mask)
    assert_close(model(texts).last_hidden_state, hidden.transpose(0, 1))


def test_a_text_that_is_all_padding_is_no_number_that_is_none() -> None:
    model = build_encoder(halting="act")
    encoded = model(some_tokens(2, 3), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    assert all(part.isfinite().all() for part in (encoded.last_hidden_state, encoded.pooler_output))
    with pytest.raises(SegueError, match="attention_mask should have the shape of input_ids"):
        model(some_tokens(2, 3), torch.ones(2, 2))
