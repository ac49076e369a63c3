"""Translators: the loss is the published formula, runs resume to the bit, and what was learned comes out again."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import segue
from segue.checkpoint import checkpoints, load, load_translator
from segue.config import Seq2SeqConfig, Translating, VocabularyConfig
from segue.errors import SegueError
from segue.infer.judge import bleu, judge, split_texts
from segue.infer.translate import strangeness, translate, translate_stream
from segue.nn.smoothing import least_nats, smoothed_nats
from segue.nn.vocab import Vocabulary
from segue.progress import silent
from segue.recipe import PairTrainConfig, TranslationRecipe, recipe_of, with_changes
from segue.text.pairs import PairsConfig, open_pairs, prepare_pairs
from segue.text.tokenizer import ByteTokenizer
from segue.training.loop import Event


@given(st.integers(2, 9), st.floats(0, 0.9))
def test_smoothing_is_the_published_formula(vocabulary: int, smoothing: float) -> None:
    logprobs = torch.randn(5, vocabulary, dtype=torch.float64).log_softmax(-1)
    targets = torch.randint(0, vocabulary, (5,))
    believed = torch.full((5, vocabulary), smoothing / (vocabulary - 1), dtype=torch.float64)
    believed[torch.arange(5), targets] = 1 - smoothing
    assert_close(smoothed_nats(logprobs, targets, smoothing), -(believed * logprobs).sum(-1))
    perfect = believed[:1].clamp(min=1e-300).log()
    assert float(smoothed_nats(perfect, targets[:1], smoothing)) == pytest.approx(
        least_nats(smoothing, vocabulary)
    )


@given(st.floats(0, 0.9), st.sampled_from([(), (3, 6)]), st.booleans())
def test_smoothing_needs_no_table_of_probabilities(
    smoothing: float, cutoffs: tuple[int, ...], bias: bool
) -> None:
    torch.manual_seed(0)
    vocabulary = Vocabulary(
        VocabularyConfig(vocab=9, width=4, cutoffs=cutoffs), bias=bias or bool(cutoffs)
    ).double()
    with torch.no_grad():
        for weight in vocabulary.parameters():
            weight.copy_(torch.randn_like(weight))
    hidden, targets = torch.randn(2, 5, 4, dtype=torch.float64), torch.randint(0, 9, (2, 5))
    wanted = smoothed_nats(vocabulary.logprobs(hidden), targets, smoothing)
    assert_close(vocabulary.smoothed_nats(hidden, targets, smoothing), wanted)


def digits(count: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Numbers in words, to be written backwards in figures."""
    draw, words = random.Random(seed), "zero one two three four".split()  # noqa: SIM905
    pairs = []
    for _ in range(count):
        number = [draw.randrange(5) for _ in range(draw.randrange(1, 5))]
        pairs.append((" ".join(words[digit] for digit in number), "".join(str(d) for d in reversed(number))))
    return [(source.encode(), target.encode()) for source, target in pairs]


def make_pairs(folder: Path, *, joint: bool = True) -> Path:
    parts = {"train": lambda: iter(digits(300, 0)), "valid": lambda: iter(digits(30, 1))}
    prepare_pairs(parts, folder, PairsConfig(size=280, joint=joint), silent)
    return folder


def small_recipe(data: Path, model: dict[str, object] | None = None, **train: object) -> TranslationRecipe:
    header = json.loads((data / "pairs.json").read_text())
    shape = {
        "width": 32,
        "heads": 2,
        "feedforward": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        **(model or {}),
    }
    return TranslationRecipe(
        model=Seq2SeqConfig(**{"vocab": header["vocab"], "source_vocab": header["source_vocab"], **shape}),
        train=PairTrainConfig(
            **{"steps": 12, "tokens": 200, "learning_rate": 3e-3, "warmup": 10, "clip": 1.0, **train}
        ),
        translating=Translating(longest=20),
    )


@pytest.mark.parametrize("joint", [True, False])
def test_it_learns_to_translate(tmp_path: Path, joint: bool) -> None:
    data = make_pairs(tmp_path / "pairs", joint=joint)
    watched = {"validate_every": 80, "best": "bleu"}
    recipe = small_recipe(
        data, steps=160, tokens=1200, learning_rate=1e-2, optimizer="muon", schedule="linear", **watched
    )
    events: list[Event] = []
    run = segue.train(recipe, data, tmp_path / "run", watch=events.append)
    assert events[-1].kind == "done"
    translator = load_translator(run)
    source, wanted = zip(*digits(40, 2), strict=True)
    translations = [best[0].text for best in translate(translator, source)]
    right = sum(ours == theirs.decode() for ours, theirs in zip(translations, wanted, strict=True))
    assert right > 25
    assert translate(translator, [b"", "\U0001f600 漢字".encode()])[0][0].text == ""
    assert [texts[0].cut for texts in translate(translator, [b"one", b"one " * 99])] == [False, True]
    several = translate(translator, source[:3], best=3)
    assert [texts[0].text for texts in several] == translations[:3]
    assert all(
        [one.score for one in texts] == sorted((one.score for one in texts), reverse=True)
        for texts in several
    )
    streamed = translate_stream(translator, (text + b"\n" for text in source))
    assert [texts[0].text for texts in streamed] == translations
    strange = ["漢字 かな".encode()]
    assert strangeness(translator, list(source)) < 0.5 < strangeness(translator, strange)
    assert strangeness(replace(translator, source=ByteTokenizer()), strange) == 0
    valid = [event.values for event in events if event.kind == "valid"]
    assert len(valid) == 2
    assert all(values["nats"] > 0 and 0 <= values["bleu"] <= 100 for values in valid)


def test_validation_searches_greedily(tmp_path: Path) -> None:
    draw, words, data = random.Random(0), "zero one two three four".split(), tmp_path / "pairs"  # noqa: SIM905
    lines = [" ".join(draw.choices(words, k=draw.randint(4, 7))).encode() for _ in range(320)]
    parts = {
        "train": lambda: ((line, line) for line in lines[:300]),
        "valid": lambda: ((line, line) for line in lines[300:]),
    }
    prepare_pairs(parts, data, PairsConfig(size=280), silent)
    watched = {"learning_rate": 1e-2, "optimizer": "muon", "validate_every": 30, "best": "bleu"}
    events: list[Event] = []
    recipe = small_recipe(data, steps=30, tokens=400, **watched)
    translator = load_translator(segue.train(recipe, data, tmp_path / "run", watch=events.append))
    sources, wanted = split_texts(open_pairs(data), "valid")

    def score(beam_width: int) -> float:
        searched = translate(translator, sources, translating=Translating(beam_width=beam_width, longest=20))
        return bleu([best[0].text for best in searched], wanted, lower=True).score

    told = [event.values["bleu"] for event in events if event.kind == "valid"]
    assert told == [score(1)] != [score(4)]


def test_a_translator_is_judged_by_whole_references(tmp_path: Path) -> None:
    data = tmp_path / "pairs"
    side = b"one two three four five six seven"
    parts = {name: lambda: iter([(side, side)] * 3) for name in ("train", "valid")}
    prepare_pairs(parts, data, PairsConfig(size=257, longest=13), silent)  # cut behind `one two three`
    translator = load_translator(segue.train(small_recipe(data, steps=1), data, tmp_path / "run"))
    sources, wanted = split_texts(open_pairs(data), "valid")
    assert (sources, wanted) == ([side] * 3, [side.decode()] * 3)
    assert bleu(["one two three"] * 3, wanted).score < 40
    judged = judge(translator, open_pairs(data), "valid")
    assert (judged.pairs, judged.cut) == (3, 3)  # a translator of 20 tokens reads no whole source
    header = data / "pairs.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "whole": False}))  # as older ones are
    watched = small_recipe(data, steps=2, validate_every=1, best="bleu")
    with pytest.raises(SegueError, match="prepare it again"):
        segue.train(watched, data, tmp_path / "older")
    assert not (tmp_path / "older").exists()


def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    data = make_pairs(tmp_path / "pairs")
    recipe = small_recipe(
        data, {"dropout": 0.2}, steps=40, save_every=7, tokens=400, accumulate=2, keep=99
    )  # over an epoch's end
    whole = segue.train(recipe, data, tmp_path / "whole")
    wanted = load_translator(whole).model.state_dict()

    def leave(event: Event) -> None:
        if event.kind == "step" and event.step == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        segue.train(recipe, data, tmp_path / "cut", watch=leave)
    assert checkpoints(tmp_path / "cut")[-1].name == "step-00000014"
    segue.resume(tmp_path / "cut")
    resumed = load_translator(tmp_path / "cut").model.state_dict()
    assert all(torch.equal(resumed[name], weight) for name, weight in wanted.items())


def test_recurrent_translators_go_the_same_way(tmp_path: Path) -> None:
    data = make_pairs(tmp_path / "pairs")
    values = small_recipe(data, steps=3, validate_every=2).model_dump(mode="json")
    shape = {"kind": "recurrent-seq2seq", "vocab": values["model"]["vocab"], "width": 8, "cell": "lstm"}
    recipe = recipe_of({**values, "model": {**shape, "attention": False}})
    run = segue.train(recipe, data, tmp_path / "run")
    translator = load_translator(run)
    assert translator.model.config == recipe.model
    assert len(translate(translator, [b"one two", b"three"], best=2)) == 2
    translator.save(tmp_path / "bundle")
    again = load_translator(tmp_path / "bundle")
    assert translate(again, [b"one two"]) == translate(translator, [b"one two"])


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    data = make_pairs(tmp_path / "pairs")
    recipe = small_recipe(data, steps=1)
    with pytest.raises(SegueError, match=r"99 symbols and .*pairs 2\d\d; .*--set model.vocab=2\d\d"):
        segue.train(small_recipe(data, {"vocab": 99}), data, tmp_path / "x")
    with pytest.raises(SegueError, match=r"--set model.source_vocab=0"):
        segue.train(small_recipe(data, {"source_vocab": 5}), data, tmp_path / "x")
    with pytest.raises(SegueError, match="holds no prepared pairs"):
        segue.train(recipe, tmp_path, tmp_path / "x")
    run = segue.train(recipe, data, tmp_path / "run")
    with pytest.raises(SegueError, match="is a translator, which reads pairs and not streams"):
        load(run)
    with pytest.raises(SegueError, match="a beam of 4 finds at most"):
        translate(load_translator(run), [b"one"], best=5)
    with pytest.raises(SegueError, match="beam_width should be greater than 0"):
        Translating(beam_width=0)
    with pytest.raises(SegueError, match="PairTrainConfig has no 'tokns'; did you mean 'tokens'"):
        recipe_of(with_changes(recipe.model_dump(mode="json"), ["train.tokns=5"]))
