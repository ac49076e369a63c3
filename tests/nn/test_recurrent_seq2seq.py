"""The RNN encoder-decoder obeys the same laws as the Transformer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from segue.config import RecurrentSeq2SeqConfig
from segue.errors import ConfigError, InputError
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from support import some_tokens

VOCAB = 13

configs = st.fixed_dictionaries(
    {
        "cell": st.sampled_from(["rnn", "gru", "lstm"]),
        "attention": st.booleans(),
        "bidirectional": st.booleans(),
        "source_vocab": st.sampled_from([0, VOCAB]),
    }
)


def build(**changes: object) -> RecurrentSeq2Seq:
    torch.manual_seed(0)
    config = RecurrentSeq2SeqConfig(**{"vocab": VOCAB, "width": 6, "layers": 2, **changes})
    return RecurrentSeq2Seq(config).double().eval()


@given(configs, st.integers(1, 5), st.integers(1, 4))
def test_padding_changes_nothing(changes: dict[str, object], length: int, more: int) -> None:
    model = build(**changes)
    source, target = some_tokens(1, length), some_tokens(1, 3, 1)
    wanted, after = model(target, model.start(source))
    longer = torch.cat([source, some_tokens(1, more, 2)], dim=1)
    padded = torch.cat([target, some_tokens(1, more, 3)], dim=1)
    found, later = model(padded, model.start(longer, torch.tensor([length])), lengths=torch.tensor([3]))
    assert_close(found[:, :3], wanted)
    assert not found[:, 3:].any()
    following = some_tokens(1, 2, 4)
    assert_close(model(following, later)[0], model(following, after)[0])


def test_half_of_a_bidirectional_encoder_reads_from_the_end() -> None:
    model, source = build(bidirectional=True, layers=1), some_tokens(2, 5)
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    before, after = model.start(source).source, model.start(changed).source
    assert_close(before[:, :4, :3], after[:, :4, :3])
    assert (before[:, 0, 3:] != after[:, 0, 3:]).all()


def test_without_attention_both_directions_are_handed_over() -> None:
    """The first state of a one-layer decoder is what its input holds too: the last outputs of both directions."""
    model = build(bidirectional=True, attention=False, layers=1)
    memory = model.start(some_tokens(3, 5), torch.tensor([5, 2, 4]))
    assert_close(model._last_outputs(memory), memory.state[0][0])


def test_a_bidirectional_width_is_even() -> None:
    with pytest.raises(ConfigError, match="is odd; use an even one"):
        RecurrentSeq2SeqConfig(vocab=VOCAB, width=7, bidirectional=True)


@pytest.mark.parametrize("cutoffs", [(), (5,)], ids=["plain", "adaptive"])
def test_every_weight_has_a_beginning(cutoffs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` gives whatever lies in memory: here nothing that is a number."""
    monkeypatch.setattr(torch, "empty", lambda *sizes, **_kinds: torch.full(_flat(sizes), torch.nan))
    model = build(embedding=4, source_vocab=VOCAB, cutoffs=cutoffs, tied=False)
    monkeypatch.undo()
    assert "vocabulary.projections.0" in model.state_dict()
    assert all(weight.isfinite().all() for weight in model.state_dict().values())
    hidden, _ = model(some_tokens(2, 3), model.start(some_tokens(2, 5)))
    assert (model.nats(hidden, some_tokens(2, 3, 1)) < 30).all()


def _flat(sizes: tuple[object, ...]) -> tuple[int, ...]:
    return tuple(sizes[0]) if isinstance(sizes[0], tuple | torch.Size) else sizes


@given(configs, st.permutations(range(4)))
def test_the_order_of_sentences_changes_nothing(changes: dict[str, object], order: list[int]) -> None:
    model = build(**changes)
    source, target, lengths = some_tokens(4, 5), some_tokens(4, 3, 1), torch.tensor([5, 1, 0, 3])
    wanted, _ = model(target, model.start(source, lengths))
    assert wanted.isfinite().all()
    found, _ = model(target[order], model.start(source[order], lengths[order]))
    assert_close(found, wanted[order])


@given(configs, st.lists(st.integers(1, 5), unique=True).map(sorted))
def test_where_a_target_is_cut_makes_no_difference(changes: dict[str, object], cuts: list[int]) -> None:
    model = build(**changes)
    source, target, lengths = some_tokens(2, 5), some_tokens(2, 6, 1), torch.tensor([5, 2])
    wanted, _ = model(target, model.start(source, lengths))
    memory, pieces = model.start(source, lengths), []
    for piece in torch.tensor_split(target, cuts, dim=1):
        hidden, memory = model(piece, memory)
        pieces.append(hidden)
    assert_close(torch.cat(pieces, dim=1), wanted)
    assert memory.seen.tolist() == [6, 6]
    more = some_tokens(2, 1, 5)
    chosen, _ = model(more[[1, 0, 1]], memory.select([1, 0, 1]))
    assert_close(chosen, model(more, memory)[0][[1, 0, 1]])


def test_without_attention_only_the_last_state_is_known() -> None:
    source, target = some_tokens(1, 5), some_tokens(1, 3, 1)
    for attention in (False, True):
        model = build(attention=attention)
        memory = model.start(source)
        changed = memory.source.clone()
        changed[:, :-1] = 9.0  # all but the last output
        other = type(memory)(memory.state, changed, memory.padded, memory.seen)
        same = torch.allclose(model(target, memory)[0], model(target, other)[0])
        assert same is not attention


def test_as_many_sentences_as_were_started() -> None:
    model = build()
    with pytest.raises(InputError, match="2 sentences and the target 3"):
        model(some_tokens(3, 2), model.start(some_tokens(2, 4)))
