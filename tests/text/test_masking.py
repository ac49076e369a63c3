"""BERT's masking: its shares, what is never chosen, whole words; and the passages that are masked."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import make_corpus, write_texts
from segue.errors import SegueError
from segue.text.corpus import Corpus, open_corpus
from segue.text.masked_texts import MaskedTexts, Masking, masked_texts
from segue.text.masking import MaskablePieces, choose_places, mask_places, maskable_pieces
from segue.text.passages import DocumentPassages
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.text.text_batches import IGNORED_LABEL
from segue.text.wordpiece import CLS, MASK, PAD, SEP, SPECIAL, read_wordpiece

VOCAB = 60
PIECES = MaskablePieces(
    {symbol: number for number, symbol in enumerate(SPECIAL)},
    np.arange(VOCAB) < len(SPECIAL),
    np.arange(VOCAB) >= 40,  # these continue a word
)


def within_three_sigma(count: int, of: int, share: float) -> bool:
    return abs(count - share * of) <= 3 * np.sqrt(of * share * (1 - share))


def test_of_the_chosen_80_percent_are_masked_10_random_10_kept() -> None:
    random = np.random.default_rng(0)
    ids = random.integers(len(SPECIAL), VOCAB, 40_000)
    places = choose_places(ids, PIECES, 0.15, whole_words=False, random=random)
    assert len(set(places.tolist())) == len(places) == 6000
    seen, labels = mask_places(ids, places, PIECES, random)
    assert (labels[places] == ids[places]).all()
    rest = np.setdiff1d(np.arange(len(ids)), places)
    assert (labels[rest] == IGNORED_LABEL).all()
    assert (seen[rest] == ids[rest]).all()
    masked = seen[places] == PIECES.ids[MASK]
    kept = seen[places] == ids[places]
    assert within_three_sigma(int(masked.sum()), 6000, 0.8)
    right_by_chance = 0.1 / (VOCAB - len(SPECIAL))
    assert within_three_sigma(int(kept.sum()), 6000, 0.1 + right_by_chance)
    swapped = seen[places][~masked & ~kept]
    assert len(np.unique(swapped)) == VOCAB - len(SPECIAL), "any piece may come, and no special symbol"
    assert not PIECES.special[swapped].any()


def test_chosen_places_are_spread_evenly() -> None:
    random = np.random.default_rng(1)
    ids = np.full(20, 7)
    counts = np.zeros(20)
    for _ in range(3000):
        counts[choose_places(ids, PIECES, 0.15, whole_words=False, random=random)] += 1
    assert all(within_three_sigma(int(count), 3000, 0.15) for count in counts)


@given(
    ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    whole_words=st.booleans(),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_no_special_symbol_is_chosen_and_the_share_is_kept(
    ids: list[int], whole_words: bool, share: float, seed: int
) -> None:
    text, wanted = np.array(ids), max(1, round(share * len(ids)))
    places = choose_places(text, PIECES, share, whole_words=whole_words, random=np.random.default_rng(seed))
    assert not PIECES.special[text[places]].any()
    choosable = int((~PIECES.special[text]).sum())
    assert len(places) <= wanted
    if not whole_words:
        assert len(places) == min(wanted, choosable)


@given(ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_whole_words_are_chosen_whole(ids: list[int], seed: int) -> None:
    words: list[list[int]] = []
    for place, number in enumerate(ids):
        if number < len(SPECIAL):
            words.append([])
        elif number >= 40 and place and ids[place - 1] >= len(SPECIAL):
            words[-1].append(place)
        else:
            words.append([place])
    random = np.random.default_rng(seed)
    places = set(choose_places(np.array(ids), PIECES, 0.4, whole_words=True, random=random).tolist())
    assert all(places.issuperset(word) or places.isdisjoint(word) for word in words)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("masked")
    config = PrepareConfig(tokenizer="wordpiece", size=60, valid=0.1, test=0.1)
    texts = [path for words in (3, 40, 90) for path in write_texts(folder / str(words), 12, words)]
    prepare(from_files("texts", texts), folder / "corpus", config, lambda *_: None)
    return open_corpus(folder / "corpus")


def texts_of(corpus: Corpus, length: int = 24, *, pairs: bool = False, offset: int = 0) -> MaskedTexts:
    pieces = maskable_pieces(read_wordpiece(corpus.folder / "tokenizer.json"), "it")
    return masked_texts(
        corpus.stream("train"), pieces, Masking(pairs=pairs), length, "train of it", offset=offset
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_a_text_is_drawn_from_its_generator_alone(corpus: Corpus, pairs: bool) -> None:
    texts = texts_of(corpus, pairs=pairs)
    one, again, other = (texts.text(5, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one == again != other


def test_running_texts_hold_every_token_in_order_with_separators_between_documents(corpus: Corpus) -> None:
    stream, texts = corpus.stream("train"), texts_of(corpus, 24)
    rows = [texts._unmasked(number, np.random.default_rng(0))[0] for number in range(len(texts))]
    cls, sep = (texts.pieces.ids[symbol] for symbol in (CLS, SEP))
    for number, row in enumerate(rows):
        assert (row[0], row[-1]) == (cls, sep)
        assert len(row) == 24 or number == len(rows) - 1
        begin = number * 22
        inside = set((stream.starts[(stream.starts > begin)] - begin).tolist())
        expected: list[int] = []
        for place, token in enumerate(stream.ids[begin : begin + 22].tolist()):
            expected += [sep, token] if place in inside else [token]
        assert row[1:-1].tolist() == expected[: len(row) - 2]


def test_pairs_follow_half_of_the_time_and_else_come_from_another_document(corpus: Corpus) -> None:
    stream, texts, random = corpus.stream("train"), texts_of(corpus, 24, pairs=True), np.random.default_rng(0)
    passages, size = texts.passages, 21
    assert isinstance(passages, DocumentPassages)
    stream_ids, starts = np.arange(len(stream.ids)), stream.starts
    object.__setattr__(
        passages.stream, "ids", stream_ids
    )  # offsets in place of ids: they tell where a token is from
    followed, drawn = 0, 4000
    try:
        for _ in range(drawn):
            number = int(random.integers(len(passages)))
            first, second, follows = passages.pair(number, size, random)
            assert 2 <= len(first) + len(second) <= size
            assert len(first) >= 1 <= len(second)
            documents = [np.searchsorted(starts, part, side="right") for part in (first, second)]
            assert all(len(set(part)) == 1 for part in documents), "a passage lies in one document"
            assert follows == (documents[0][0] == documents[1][0])
            assert not follows or second[0] == first[-1] + 1
            followed += follows
    finally:
        object.__setattr__(passages.stream, "ids", corpus.stream("valid").ids.base)
        corpus._streams.clear()
    assert within_three_sigma(followed, drawn, 0.5)


def test_a_batch_is_padded_and_typed(corpus: Corpus) -> None:
    texts = texts_of(corpus, 24, pairs=True)
    numbers = range(12)
    batch = texts.batch(numbers, [texts.text(number, np.random.default_rng(number)) for number in numbers])
    padding = batch.attention_mask == 0
    assert padding.any()
    assert (batch.input_ids[padding] == texts.pieces.ids[PAD]).all()
    assert (batch.labels[padding] == IGNORED_LABEL).all()
    assert set(batch.token_type_ids.unique().tolist()) == {0, 1}
    part = batch.rows(slice(1, None, 5))
    assert part.numbers.tolist() == [1, 6, 11]
    longest = int(part.attention_mask.sum(dim=1).max())
    assert part.input_ids.size(1) == part.labels.size(1) == longest <= batch.input_ids.size(1)


def test_a_corpus_of_bytes_or_of_one_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SegueError, match="it is no WordPiece"):
        read_wordpiece(make_corpus(tmp_path / "words", tokenizer="words") / "tokenizer.json")
    [path] = write_texts(tmp_path / "one", 1, 400)
    config = PrepareConfig(tokenizer="wordpiece", size=60)
    prepare(from_files("one", [path]), tmp_path / "corpus", config, lambda *_: None)
    with pytest.raises(SegueError, match="train of it has 1 documents .* needs? two|draws from two or more"):
        texts_of(open_corpus(tmp_path / "corpus"), pairs=True)
