"""Probes of attention heads: labels that are right, balanced positions, and controls that do not pass."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
import torch
from torch import Tensor

from runs import make_corpus, small_recipe
from segue.checkpoint import Bundle
from segue.cli.lab import USERS
from segue.config import EncoderReading, HeadConfig, Reach, Reading, XLConfig
from segue.errors import InputError
from segue.infer.fill import fill
from segue.lab import heads, likelihood
from segue.lab.experiment import Results, Setting, Verdict
from segue.lab.likelihood import Question, asked, asked_alone, preference_of_encoder, preference_of_reader
from segue.lab.probes import AMBIGUITIES, INSTRUMENTS, MEN, PROBES, WOMEN, Example, drawn, matched, vocabulary
from segue.lab.record import measured
from segue.lab.report import write_report
from segue.lab.results import given_runs
from segue.lab.shares import ahead
from segue.lab.word_attention import random_encoder, shuffled, untrained, weights_digest, word_weights
from segue.nn.models import build_language_model
from segue.nn.task_encoder import TaskEncoder
from segue.text.tokenizer import ByteTokenizer
from segue.training.run import train

ENCODER = random_encoder(vocabulary(), 3)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("name", PROBES)
def test_targets_are_what_the_probe_asks_for(name: str, half: int) -> None:
    for one in drawn(PROBES[name].examples, half, 60, seed=1):
        assert one.target in one.candidates
        assert one.query not in one.candidates
        query, target = one.words[one.query], one.words[one.target]
        if name == "same word":
            assert query == target
            assert Counter(one.words)[query] == 2
        elif name == "brackets":
            opened, closed = matched(one.words)
            assert (one.target, one.query) in set(zip(opened, closed, strict=True))
        elif name == "pronoun":
            assert target in (MEN[half] if query == "he" else WOMEN[half])
            assert len(one.candidates) == 2
        elif name == "subject":
            assert len(one.candidates) == 2


@pytest.mark.parametrize("name", [name for name, probe in PROBES.items() if not probe.positional])
def test_no_distance_and_no_place_answers(name: str) -> None:
    for half in (0, 1):
        examples = drawn(PROBES[name].examples, half, 400, seed=1)
        assert heads.offset_answers(examples, heads.OFFSETS).max() <= 0.55
        shifted = [replace(one, query=0) for one in examples]  # distances from the beginning
        assert heads.offset_answers(shifted, range(30)).max() <= 0.6


def test_the_halves_share_no_sentence() -> None:
    for probe in PROBES.values():
        first, second = ({one.words for one in drawn(probe.examples, half, 300, seed=0)} for half in (0, 1))
        assert not first & second


def test_readings_differ_in_one_word() -> None:
    for make in AMBIGUITIES.values():
        for half in (0, 1):
            for pair in drawn(make, half, 40, seed=2):
                words = zip(pair.instrument.words, pair.attribute.words, strict=True)
                assert sum(one != other for one, other in words) == 1
                places = [(one.query, one.verb, one.noun) for one in (pair.instrument, pair.attribute)]
                assert places[0] == places[1]


def attending(examples: list[Example], head: int, place: str) -> list[Tensor]:
    """Weights of three heads, one of which attends to what it should."""
    weights = []
    for one in examples:
        looks = torch.full((3, len(one.words)), 1 / len(one.words))
        looks[head, getattr(one, place)] = 1.0
        weights.append(looks)
    return weights


def test_a_head_that_follows_is_right_and_one_that_is_indifferent_is_not() -> None:
    examples = drawn(PROBES["subject"].examples, 0, 30, seed=0)
    assert heads.answers(attending(examples, 1, "target"), examples).tolist() == [0.0, 1.0, 0.0]
    assert heads.chosen(torch.tensor([0.2, 0.9]), torch.tensor([1.0, 0.6])).right == pytest.approx(0.6)


def test_weights_of_words_are_those_of_their_pieces() -> None:
    words = ["the", "dog", "dogs", "slept"]  # an unknown word is one piece too
    (looks,) = word_weights(ENCODER, [words], [1])
    ids = ENCODER.tokenizer.encode(["the dog dogs slept"], 64).input_ids
    attentions = ENCODER.model.encoder(torch.as_tensor(ids), output_attentions=True).attentions
    assert attentions is not None
    torch.testing.assert_close(looks, torch.cat([layer[0, :, 2, 1:-1] for layer in attentions]))


def test_padding_changes_no_weight() -> None:
    short, long = ["the", "dog", "slept"], ["the", "old", "cat", "and", "the", "dog", "came"]
    alone = word_weights(ENCODER, [short], [2])[0]
    torch.testing.assert_close(word_weights(ENCODER, [long, short], [2, 2])[1], alone)


def test_controls_have_other_weights_of_the_same_size() -> None:
    control = shuffled(ENCODER, 1)
    for name, weight in ENCODER.model.state_dict().items():
        other = control.model.state_dict()[name]
        torch.testing.assert_close(other.flatten().sort().values, weight.flatten().sort().values)
    digests = {weights_digest(one.model) for one in (ENCODER, control, untrained(ENCODER, 1))}
    assert len(digests) == 3


def test_a_masked_head_says_which_reading_it_prefers() -> None:
    assert preference_of_encoder(ENCODER) is None
    torch.manual_seed(0)
    masked = replace(ENCODER, model=TaskEncoder(ENCODER.model.config, HeadConfig(task="masked")).eval())
    prefers = preference_of_encoder(masked)
    assert prefers is not None
    question = asked(drawn(AMBIGUITIES["noun decides"], 0, 1, seed=0)[0].instrument)
    swapped = question._replace(who=question.noun, noun=question.who)
    one, other, alone = prefers([question, swapped, question._replace(before="the ")])
    torch.testing.assert_close(one, -other)
    assert float(one) != pytest.approx(float(alone))
    torch.testing.assert_close(prefers([question])[0], one)  # whatever is read beside it
    ((guesses,),) = fill(masked, [f"{question.before}[MASK]{question.behind}"], top=10_000)
    chance = {guess.piece: guess.probability for guess in guesses}
    assert float(one) == pytest.approx(math.log(chance[question.who] / chance[question.noun]), rel=1e-3)


@pytest.mark.parametrize("kind", AMBIGUITIES)
def test_a_question_names_the_two_who_may_have_the_thing(kind: str) -> None:
    for pair in (one for half in (0, 1) for one in drawn(AMBIGUITIES[kind], half, 40, seed=0)):
        for reading in (pair.instrument, pair.attribute):
            before, who, noun, behind = asked(reading)
            assert f"the {who} {reading.words[reading.verb]} the {noun} with the " in before
            assert before.endswith(" the ")
            assert behind == f" had the {reading.words[reading.query]} ."
            assert asked_alone(reading) == ("the ", who, noun, behind)
    owners = {asked(pair.instrument).who in MEN[0] for pair in drawn(AMBIGUITIES[kind], 0, 40, seed=0)}
    assert owners == {True, False}  # or a model could answer by the sexes alone


def judged(prefers: Callable[[Question], float]) -> Results:
    pairs = {kind: drawn(make, 0, 40, seed=0) for kind, make in AMBIGUITIES.items()}
    return likelihood._told_apart(lambda some: torch.tensor([prefers(one) for one in some]), pairs)


def owned(question: Question) -> list[str]:
    """Whom the context names as an owner, and what is owned."""
    words = question.before.split()
    return [one for one in (question.who, question.noun) if words.count(one) > 1]


def test_repeating_and_knowing_things_are_not_enough() -> None:
    """One repeats the context's owner, one knows things but no sentences, and one knows whose thing it is."""

    def repeats(question: Question) -> float:
        return float(owned(question) == [question.who])

    def knows_things(question: Question) -> float:
        return float(any(f" {thing} " in question.behind for thing in INSTRUMENTS[0]))

    def reads(question: Question) -> float:
        thing = question.behind.split()[-2]
        if owned(question):  # behind or before a context
            return repeats(question) * (question.before.split().count(thing) > 1)
        return knows_things(question) * (" with the " in question.before)

    assert judged(repeats)["context decides"] == {"told": 1, "control": 1, "more": 0}
    assert judged(knows_things)["noun decides"] == {"told": 1, "control": 1, "more": 0}
    assert judged(reads)["context decides"] == {"told": 1, "control": 0, "more": 1}
    assert judged(reads)["noun decides"] == {"told": 1, "control": 0, "more": 1}
    assert not any(sum(shares.values()) for shares in judged(lambda _: 0.0).values())


def test_a_pair_is_compared_with_its_own_control() -> None:
    """One who repeats an owner more strongly in some scenes than in others knows no reading either."""

    def repeats(question: Question) -> float:
        scene = crc32(f"{question.who} {question.noun}{question.behind}".encode())
        return (1 + scene % 97) * float(owned(question) == [question.who])

    def knows_things(question: Question) -> float:
        return float(crc32(question.behind.encode()) % 97)

    assert judged(repeats)["context decides"]["more"] == 0
    assert judged(knows_things)["noun decides"]["more"] == 0


@pytest.mark.parametrize(("untrained_share", "wanted"), [(0.5, True), (0.85, False)])
def test_likelihood_must_differ_by_more_than_with_fresh_weights(untrained_share: float, wanted: bool) -> None:
    def shares(more: float) -> Results:
        return {kind: {"told": 1.0, "control": 1.0, "more": more} for kind in likelihood.CONTROL_OF}

    models = {"mine": {"trained": shares(0.9), "untrained": [shares(0.5), shares(untrained_share)]}}
    told = likelihood.tell_likelihoods({"pairs": 240, "models": models})
    assert [one.shown for one in told if isinstance(one, Verdict)] == [wanted, wanted]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("heads")
    corpus = make_corpus(folder / "data", documents=20, words=20)
    record, _ = measured(heads.EXPERIMENT, Setting(corpus, folder, quick=True), "")
    page, notes = write_report(folder, draw=["heads"])
    assert notes == []
    assert '<section id="heads">' in page.read_text()
    return record.results


def test_a_given_language_model_judges_the_readings(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "data", documents=20, words=20)
    train(small_recipe(), corpus, tmp_path / "small")
    setting = Setting(corpus, tmp_path, quick=True, runs=(tmp_path / "small",))
    judges = likelihood.likelihood_judges(setting, ENCODER, (1, 2))
    told = likelihood.measured_likelihoods(setting, judges, 3)
    assert told["pairs"] == 6
    (model,) = told["models"].values()
    assert set(told["models"]) == {"small"}
    assert len(model["untrained"]) == 2
    assert set(model["trained"]) == set(likelihood.CONTROL_OF)
    assert (
        len({str(likelihood.measured_likelihoods(setting, {"": [one, one]}, 9)) for one in judges["small"]})
        == 3
    )
    assert heads.inputs(setting) != heads.inputs(replace(setting, runs=()))
    assert "heads" in USERS["--run"]
    assert [run.name for run in given_runs([tmp_path / "small"])] == ["small"]


@torch.no_grad()
def test_a_reader_prefers_the_likelier_text() -> None:
    torch.manual_seed(0)
    model = build_language_model(XLConfig(vocab=256, width=8, layers=1, heads=2)).eval()
    bundle = Bundle(model, Reading(segment=7, reach=Reach(memory=200)), ByteTokenizer())
    question = Question("the dog saw the cat . the ", "dog", "cat", " slept .")

    def nats(text: str) -> float:
        tokens = torch.tensor([list(text.encode())])
        hidden, _ = model(tokens[:, :-1], model.start(reach=Reach(memory=0)))
        return float(model.nats(hidden, tokens[:, 1:]).sum())

    before, who, noun, behind = question
    wanted = nats(before + noun + behind) - nats(before + who + behind)
    assert float(preference_of_reader(bundle)([question])) == pytest.approx(wanted, rel=1e-3)


def test_an_encoder_judges_by_its_masked_head(tmp_path: Path) -> None:
    masked = TaskEncoder(ENCODER.model.config, HeadConfig(task="masked")).eval()
    replace(ENCODER, model=masked).save(tmp_path / "masked")
    ENCODER.save(tmp_path / "plain")
    runs = (tmp_path / "masked",)
    assert given_runs(runs) == []  # it has no bits per byte
    setting = Setting(tmp_path, tmp_path, quick=True, runs=runs)
    ((name, judges),) = likelihood.likelihood_judges(setting, ENCODER, (1, 2)).items()
    assert (name, len(judges)) == ("masked", 3)
    with pytest.raises(InputError, match="plain is an encoder without a masked-LM head"):
        likelihood.likelihood_judges(replace(setting, runs=(tmp_path / "plain",)), ENCODER, (1,))
    short = replace(ENCODER, model=masked, reading=EncoderReading(max_length=16))
    prefers = preference_of_encoder(short)
    assert prefers is not None
    with pytest.raises(InputError, match=r"drops \[MASK\]"):
        prefers([asked(drawn(AMBIGUITIES["context decides"], 0, 1, seed=0)[0].instrument)])


def test_random_weights_show_nothing(results: Results) -> None:
    verdicts = [block for block in heads.tell(results) if isinstance(block, Verdict)]
    assert len(verdicts) == len(PROBES) + 2
    assert not any(verdict.shown for verdict in verdicts)


def test_a_head_must_be_ahead_of_every_control(results: Results) -> None:
    probe = results["probes"]["pronoun"]
    right, many = max(heads.controls(probe).values()), {**results, "sentences": 10_000}
    for share, wanted in ((right + 0.09, False), (right + 0.11, True)):
        better = {**probe, "trained": [{**probe["trained"][0], "right": share}]}
        assert heads._verdict("pronoun", better, many).shown == wanted
    assert ahead(0.7, 0.5, 400)
    assert not ahead(0.7, 0.5, 20)  # so few sentences say little


def test_without_an_encoder_the_full_version_is_skipped(tmp_path: Path) -> None:
    assert "--encoder" in heads.EXPERIMENT.skipped(Setting(tmp_path, tmp_path))
    assert heads.EXPERIMENT.skipped(Setting(tmp_path, tmp_path, quick=True)) == ""


def test_an_encoder_without_weights_of_single_tokens_is_refused() -> None:
    linear = replace(
        ENCODER,
        model=TaskEncoder(ENCODER.model.config.model_copy(update={"window": 4})).eval(),
    )
    with pytest.raises(InputError, match="give a BERT"):
        word_weights(linear, [["the", "dog"]], [0])
