"""Labels, tags and answers: decoding equals brute force; windows, padding and batch-mates change nothing."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoders import small_encoder
from segue.checkpoint import TextEncoder
from segue.config import EncoderReading, HeadConfig
from segue.errors import InputError
from segue.infer.answer import answer
from segue.infer.judge_examples import best_threshold, judge_examples
from segue.infer.metrics import answer_f1
from segue.infer.spans import WindowScores, decode_spans
from segue.text.examples import LabelledText, Question, ScoredText, TaggedWords

WORDS = "the animal did not cross street . untired zzz".split()  # noqa: SIM905
SENTENCE = st.lists(st.sampled_from([*WORDS, "\u200d"]), min_size=1, max_size=30)


def encoder_for(folder: Path, head: HeadConfig, **shape: object) -> TextEncoder:
    encoder = small_encoder(folder, head, **{"max_positions": 24, **shape})
    encoder.model.double()
    return TextEncoder(encoder.model, encoder.tokenizer, EncoderReading(max_length=24))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@given(data=st.data(), top=st.integers(1, 6), longest=st.integers(1, 5))
@settings(max_examples=50)
def test_decoding_spans_equals_brute_force(data: st.DataObject, top: int, longest: int) -> None:
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    windows, every = [], []
    for number in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(0, 8))
        starts, ends = torch.randn(2, size, dtype=torch.float64)
        owned, begin = torch.rand(size) < 0.7, number * 4
        windows.append(WindowScores(begin, starts, ends, owned, float(torch.randn(()))))
        every += [
            (float(starts[i] + ends[j]), begin + i, begin + j)
            for i in range(size)
            for j in range(size)
            if owned[i] and i <= j < i + longest
        ]
    decoded = decode_spans(windows, top, longest)
    wanted = sorted(every, reverse=True)[:top]
    assert [span[1:] for span in decoded.spans] == [span[1:] for span in wanted]
    assert [span[0] for span in decoded.spans] == pytest.approx([span[0] for span in wanted])
    assert decoded.null == min(window.null for window in windows)
    total = math.log(sum(math.exp(span[0]) for span in every)) if every else -math.inf
    assert decoded.total == pytest.approx(total)


@given(texts=st.lists(SENTENCE.map(" ".join), min_size=1, max_size=5))
@settings(max_examples=20)
def test_batch_mates_change_no_label_and_no_score(folder: Path, texts: list[str]) -> None:
    encoder = encoder_for(folder, HeadConfig(task="text", labels=("a", "b", "c")))
    together = encoder.classify(texts)
    padded = encoder.tokenizer.encode(texts, 24)
    with torch.no_grad():
        logits = encoder.model(*map(torch.from_numpy, padded[:3])).logits
    for row, one in zip(logits.softmax(-1).tolist(), together, strict=True):
        assert [one.probabilities[label] for label in "abc"] == pytest.approx(row, abs=1e-6)
        assert one.label == "abc"[row.index(max(row))]
    for text, one in zip(texts, together, strict=True):
        assert encoder.classify(text)[0].probabilities == pytest.approx(one.probabilities)
    scored = encoder_for(folder, HeadConfig(task="score", pairs=True))
    scores = scored.score(texts, texts[::-1])
    assert [scored.score(*pair)[0] for pair in zip(texts, texts[::-1], strict=True)] == pytest.approx(scores)


@given(sentences=st.lists(SENTENCE, min_size=1, max_size=4))
@settings(max_examples=20)
def test_tags_in_any_company_are_those_of_the_first_pieces(folder: Path, sentences: list[list[str]]) -> None:
    encoder = encoder_for(folder, HeadConfig(task="tags", labels=("O", "B-x", "I-x")), max_positions=99)
    encoder = TextEncoder(encoder.model, encoder.tokenizer, EncoderReading(max_length=99))
    together = encoder.tag(sentences)
    assert [encoder.tag([words])[0] for words in sentences] == together
    for words, tags in zip(sentences, together, strict=True):
        ids, places = [2], []
        for word in words:
            pieces = encoder.tokenizer.placed([word])[0].ids
            places.append(len(ids) if pieces else None)
            ids += pieces
        with torch.no_grad():
            best = encoder.model(torch.tensor([[*ids, 3]])).logits[0].argmax(-1)
        assert tags == ["O" if place is None else ("O", "B-x", "I-x")[best[place]] for place in places]


def test_a_sentence_of_any_length_is_tagged_by_windows(folder: Path) -> None:
    encoder = encoder_for(folder, HeadConfig(task="tags", labels=("O", "B-x")), max_positions=24)
    words = WORDS * 20
    (tags,) = encoder.tag([words])
    assert len(tags) == len(words)
    pieces = encoder.tokenizer.placed([words])[0]
    inside = [
        encoder.model(torch.tensor([[2, *pieces.ids[begin : begin + 22], 3]])).logits[0] for begin in (0, 11)
    ]
    best = [logits[1:-1].argmax(-1).tolist() for logits in inside]
    # up to its fifth piece from the end, the first window has more context than the second, which begins at piece 11
    by_piece = best[0][:17] + best[1][6:17]
    first = {word: piece for piece, word in reversed(list(enumerate(pieces.words)))}
    assert [tags[word] for word, piece in sorted(first.items()) if piece < 27] == [
        ("O", "B-x")[by_piece[piece]] for _, piece in sorted(first.items()) if piece < 27
    ]


@pytest.mark.parametrize("no_answer", [False, True])
def test_answers_over_windows_equal_brute_force(folder: Path, no_answer: bool) -> None:
    encoder = encoder_for(folder, HeadConfig(task="span", no_answer=no_answer))
    context = " ".join(WORDS * 6)
    question = "the street ."
    found = answer(encoder, [(question, context)], top=5, threshold=-1e9)[0]
    asked, pieces = encoder.tokenizer.placed([question, context])
    room = 24 - 3 - len(asked.ids)
    stride, every, nulls = room // 2, {}, []
    starts = list(range(0, len(pieces.ids) - room + stride, stride))
    for number, begin in enumerate(starts):
        inside = pieces.ids[begin : begin + room]
        ids = torch.tensor([[2, *asked.ids, 3, *inside, 3]])
        types = torch.tensor([[0] * (len(asked.ids) + 2) + [1] * (len(inside) + 1)])
        with torch.no_grad():
            logits = encoder.model(ids, None, types).logits[0]
        nulls.append(float(logits[0].sum()))
        here = logits[len(asked.ids) + 2 : -1]
        for i in range(len(inside)):
            context_of = [
                min(begin + i - other, min(other + room, len(pieces.ids)) - 1 - begin - i) for other in starts
            ]
            if context_of.index(max(context_of)) != number:
                continue
            for j in range(i, min(i + 30, len(inside))):
                every[begin + i, begin + j] = float(here[i, 0] + here[j, 1])
    best = sorted(every, key=lambda span: -every[span])[:5]
    null = min(nulls)
    total = sum(math.exp(score) for score in every.values()) + (math.exp(null) if no_answer else 0)
    for span, (first, last) in zip(found.spans, best, strict=True):
        begin, end = pieces.places[first][0], pieces.places[last][1]
        assert (span.text, span.start, span.end) == (context[begin:end], begin, end)
        assert span.score == pytest.approx(every[first, last] - null, abs=1e-5)
        assert span.probability == pytest.approx(math.exp(every[first, last]) / total, rel=1e-4)
    assert found.null_probability == pytest.approx(math.exp(null) / total if no_answer else 0, rel=1e-4)
    assert found.text == found.spans[0].text
    none = answer(encoder, [(question, context)], threshold=1e9)[0]
    assert (none.text, none.no_answer) == ("", True)
    assert encoder.answer(question, "\u200d").text == ""  # not one piece is left: there is no answer


def test_the_best_threshold_is_the_best_of_all(folder: Path) -> None:
    encoder = encoder_for(folder, HeadConfig(task="span", no_answer=True))
    contexts = [" ".join(WORDS[n:] + WORDS[:n]) for n in range(9)]
    answers = answer(encoder, [("street", context) for context in contexts])
    wanted = [[one.spans[0].text] if number % 3 else [] for number, one in enumerate(answers)]
    found = best_threshold(answers, wanted)

    def f1(threshold: float) -> float:
        texts = [one.spans[0].text if one.spans[0].score > threshold else "" for one in answers]
        return sum(answer_f1(text, right) for text, right in zip(texts, wanted, strict=True)) / len(wanted)

    scores = sorted(one.spans[0].score for one in answers)
    every = [scores[0] - 1, *(score + 1e-9 for score in scores)]
    assert found["best_f1"] == pytest.approx(max(map(f1, every)))
    assert f1(found["best_threshold"]) == pytest.approx(found["best_f1"])


def test_figures_of_a_split(folder: Path) -> None:
    labels = encoder_for(folder, HeadConfig(task="text", labels=("a", "b")))
    texts = ["the animal", "street .", "not"]
    own = [one.label for one in labels.classify(texts)]
    right = [LabelledText(texts=(text,), label=label) for text, label in zip(texts, own, strict=True)]
    scores = judge_examples(labels, right)
    assert (scores.main, scores.examples) == (1.0, 3)
    assert sum(map(sum, scores.confusion or [])) == 3
    numbers = encoder_for(folder, HeadConfig(task="score", pairs=True))
    pairs = [ScoredText(texts=("the", text), score=numbers.score("the", text)[0]) for text in texts]
    assert judge_examples(numbers, pairs).figures["pearson"] == pytest.approx(1.0)
    tags = encoder_for(folder, HeadConfig(task="tags", labels=("O", "B-x")))
    words = [TaggedWords(words=tuple(WORDS), tags=tuple(tags.tag([WORDS])[0]))]
    assert judge_examples(tags, words).figures["accuracy"] == 1.0
    spans = encoder_for(folder, HeadConfig(task="span"))
    context = " ".join(WORDS)
    best = spans.answer("who", context).spans[0]
    asked = Question(
        name="q", question="who", context=context, answers=({"text": best.text, "answer_start": best.start},)
    )
    assert judge_examples(spans, [asked]).figures == {"f1": 1.0, "exact_match": 1.0}


def test_what_does_not_fit_the_head_is_one_line(folder: Path) -> None:
    labels = encoder_for(folder, HeadConfig(task="text", labels=("a", "b")))
    pairs = encoder_for(folder, HeadConfig(task="text", labels=("a", "b"), pairs=True))
    spans = encoder_for(folder, HeadConfig(task="span"))
    tags = encoder_for(folder, HeadConfig(task="tags", labels=("O", "B-x")))
    for wrong, complaint in [
        (lambda: spans.classify("the"), "a head for the task 'span'; use segue answer"),
        (
            lambda: small_encoder(folder).classify("the"),
            "has no head for a task; fine-tune it: segue train cl",
        ),
        (lambda: small_encoder(folder).tag([["the"]]), "segue train tag-cpu"),
        (lambda: small_encoder(folder).answer("who", "the sea"), "segue train answer-cpu"),
        (lambda: labels.classify(["the", " "]), "text 2 is empty"),
        (
            lambda: pairs.classify("the"),
            "text 1 has no other to go with it: this encoder was trained on pairs",
        ),
        (lambda: tags.tag(["the animal"]), "should be a list of words"),  # type: ignore[list-item]
        (lambda: tags.tag([["the"], []]), "sentence 2 has no words"),
        (lambda: spans.answer("", "the"), "question 1 or its context is empty"),
        (lambda: spans.answer("who", "the", top=0), "top should be 1 or more"),
        (
            lambda: judge_examples(labels, [LabelledText(texts=("the",), label="c")]),
            "example 1 has the label 'c', which the encoder was not trained on; it knows a, b",
        ),
        (lambda: judge_examples(labels, [ScoredText(texts=("the",), score=1)]), "for another task"),
        (
            lambda: judge_examples(pairs, [LabelledText(texts=("the",), label="a")]),
            "was trained on pairs; these are not",
        ),
    ]:
        with pytest.raises(InputError, match=complaint) as caught:
            wrong()
        assert "\n" not in str(caught.value)
