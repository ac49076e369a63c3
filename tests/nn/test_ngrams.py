"""N-gram embeddings: which tokens a vector is for, wherever segments, documents and padding begin."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, XLConfig
from segue.errors import SegueError, SourceError
from segue.interop.onnx_language import language_step
from segue.interop.settings import foreign_values
from segue.nn.layout import SegmentLayout
from segue.nn.memory import StateMemory
from segue.nn.xl import TransformerXL
from support import build, shape, some_tokens

ROWS, REACH = 7, Reach(memory=3)


def ngram_shape(ngrams: int = 3) -> XLConfig:
    return shape(ngrams=ngrams, ngram_rows=ROWS)


def textbook(model: TransformerXL, document: list[int], place: int) -> Tensor:
    """(C,) The vectors of all n-grams that end at a place of a document: Python's own integers, 64 bits of them."""
    assert model.ngrams is not None
    total, key = torch.zeros(8, dtype=torch.float64), document[place]
    for back, table in enumerate(model.ngrams.tables, start=1):
        key = key * 1_000_003 + (document[place - back] if place >= back else 13)
        key = (key + 2**63) % 2**64 - 2**63
        total = total + table[(key ^ (key >> 15)) % ROWS]
    return 8**0.25 / 2**0.5 * total


@given(
    ngrams=st.integers(2, 5),
    cuts=st.lists(st.integers(1, 11), unique=True).map(sorted),
    starts=st.lists(st.integers(0, 11), unique=True),
)
def test_every_ngram_is_of_its_own_document_wherever_segments_are_cut(
    ngrams: int, cuts: list[int], starts: list[int]
) -> None:
    model, tokens = build(ngram_shape(ngrams)), some_tokens(1, 12)
    began = torch.zeros(1, 12, dtype=torch.bool)
    began[0, starts] = True
    memory, rows = model.start(reach=Reach(memory=12)), []
    for piece, begins in zip(
        torch.tensor_split(tokens, cuts, dim=1), torch.tensor_split(began, cuts, dim=1), strict=True
    ):
        vectors = model.opened(piece, memory, begins, None).ngrams
        assert vectors is not None
        rows.append(vectors[:, 0])
        _, memory = model(piece, memory, starts=begins)
    first = 0
    for place, added in enumerate(torch.cat(rows)):
        first = place if began[0, place] else first
        assert_close(added, textbook(model, tokens[0, first:].tolist(), place - first))


def test_they_are_added_to_the_input_of_every_layer() -> None:
    model = build(ngram_shape())
    plain = TransformerXL(shape()).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    tokens = some_tokens(2, 6)
    start = model.start(lanes=2, reach=Reach(memory=6))
    _, memory = model(tokens, start)
    vectors = model.ngram_vectors(tokens, start, SegmentLayout(2, 6))
    assert vectors is not None
    added = vectors.transpose(0, 1)
    assert_close(memory.states[0], model.vocabulary.embed(tokens) + added)
    hidden = memory.states[0].transpose(0, 1)
    opened = plain.opened(tokens, plain.start(lanes=2, reach=Reach(memory=6)), None, None)
    first = plain.blocks[0](hidden, hidden[:0], opened.relative[0], opened.masks[0]).transpose(0, 1)
    assert_close(memory.states[1], first + added)


def test_padding_is_no_part_of_an_ngram() -> None:
    model, tokens = build(ngram_shape()), some_tokens(2, 9)
    memory = model.start(lanes=2, reach=REACH)
    _, padded = model(tokens[:, :5], memory, lengths=torch.tensor([2, 5]))
    _, alone = model(tokens[:1, :2], model.start(reach=REACH))
    assert padded.recent is not None
    assert alone.recent is not None
    assert padded.recent[0].tolist() == alone.recent[0].tolist() == tokens[0, :2].tolist()
    assert_close(model(tokens[:1, 5:], padded.select([0]))[0], model(tokens[:1, 5:], alone)[0])


def test_they_begin_with_zero_and_change_nothing_then() -> None:
    torch.manual_seed(0)
    plain, model = TransformerXL(shape()), TransformerXL(ngram_shape())
    missing = model.load_state_dict(plain.state_dict(), strict=False)
    assert missing.missing_keys == ["ngrams.tables.0", "ngrams.tables.1"]
    tokens = some_tokens(1, 6)
    assert torch.equal(model(tokens, model.start(reach=REACH))[0], plain(tokens, plain.start(reach=REACH))[0])


def test_the_last_tokens_are_carried_by_every_copy_of_a_memory() -> None:
    model, tokens = build(ngram_shape()), some_tokens(2, 9)
    _, memory = model(tokens[:, :4], model.start(lanes=2, reach=REACH))
    _, keys = model.frozen()(tokens[:, :4], model.frozen().start(lanes=2, reach=REACH))
    wanted = tokens[:, 2:4].tolist()
    assert all(tensor.is_contiguous() for tensor in memory.tensors().values())  # safetensors refuses others
    restored = StateMemory.from_tensors(memory.tensors(), REACH)
    for one in (
        memory,
        restored,
        memory.to("cpu"),
        keys,
        copy.deepcopy(keys),
        model.frozen().project(memory),
    ):
        assert one.recent is not None
        assert one.recent.tolist() == wanted
        assert one.resized(Reach(memory=1)).recent is not None
        swapped = one.join([one.select([1]), one.select([0])]).recent
        assert swapped is not None
        assert swapped.tolist() == wanted[::-1]


def test_a_memory_of_a_model_without_them_is_refused() -> None:
    model, plain, tokens = build(ngram_shape()), build(shape()), some_tokens(1, 4)
    with pytest.raises(SegueError, match="carries 2 tokens for n-grams; found 0"):
        model(tokens, plain.start(reach=REACH))
    with pytest.raises(SegueError, match="carries 0 tokens for n-grams; found 2"):
        plain.frozen()(tokens, model.frozen().start(reach=REACH))
    with pytest.raises(SegueError, match="memories of one model"):
        StateMemory.join([model.start(reach=REACH), plain.start(reach=REACH)])


def test_formats_of_others_refuse_them_by_name() -> None:
    with pytest.raises(SourceError, match="this model has ngrams"):
        foreign_values(ngram_shape(), REACH)
    with pytest.raises(SourceError, match="n-gram embeddings have no ONNX form"):
        language_step(build(ngram_shape()), REACH)


@pytest.mark.parametrize("changes", [{"ngrams": 2}, {"ngram_rows": 8}, {"ngrams": 0, "ngram_rows": 8}])
def test_the_config_wants_both_settings_or_none(changes: dict[str, int]) -> None:
    with pytest.raises(SegueError, match="ngram"):
        shape(**changes)


def test_contexts_name_what_no_document_has() -> None:
    model, tokens = build(ngram_shape()), some_tokens(1, 3)
    assert model.ngrams is not None
    contexts = model.ngrams.contexts(tokens, model.start(reach=REACH), SegmentLayout(1, 3))
    first, second, _ = tokens[0].tolist()
    assert [one[0].tolist() for one in contexts[1:]] == [[13, first, second], [13, 13, first]]
