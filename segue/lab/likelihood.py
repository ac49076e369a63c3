"""Which reading of an ambiguous sentence a model finds likelier, by what it expects behind it.

    the woman saw the man with the telescope . the _____ had the telescope .

A model that takes the telescope for the instrument expects the woman there, and the man's scar to be the man's.
Controls: fresh weights; contexts that decide nothing, for a model that repeats whom it has read of; and the second
sentence alone, for a model that knows who has scars.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from segue.checkpoint import Bundle, TextEncoder, load
from segue.errors import InputError
from segue.infer.embed import embed_tokens, read_pieces
from segue.lab.experiment import Block, Results, Setting, Verdict
from segue.lab.probes import AMBIGUITIES, Reading, ReadingPair, drawn
from segue.lab.shares import CONDITION, ahead, listed
from segue.lab.trained import named
from segue.lab.word_attention import untrained
from segue.nn.models import build_language_model
from segue.nn.task_encoder import MaskedHead
from segue.text.wordpiece import MASK

ALONE = "noun decides, without the sentence"

CONTROL_OF = {"context decides": "nothing decides", "noun decides": ALONE}
"""The readings that are told apart, each with what else would tell them apart."""


class Question(NamedTuple):
    """Who has the thing? The text before and behind the gap, and the two who may fill it."""

    before: str
    who: str
    noun: str
    behind: str


Preference = Callable[[Question], float]
"""Nats by which the one who sees is likelier than the one who is seen."""


def asked(reading: Reading) -> Question:
    """The question behind an ambiguous sentence."""
    words = reading.words
    who = words[reading.verb - 1]
    return Question(f"{' '.join(words)} the ", who, words[reading.noun], f" had the {words[reading.query]} .")


def asked_alone(reading: Reading) -> Question:
    """The same question without the sentence."""
    return asked(reading)._replace(before="the ")


def preference_of_encoder(encoder: TextEncoder) -> Preference | None:
    """By the masked-LM head; None without one."""
    head = encoder.model.head
    mask = encoder.tokenizer.file.token_to_id(MASK)
    if not isinstance(head, MaskedHead) or mask is None:
        return None

    @torch.no_grad()
    def prefers(question: Question) -> float:
        (pieces,) = read_pieces(encoder, [f"{question.before}{MASK}{question.behind}"])
        (states,) = embed_tokens(encoder, [pieces])
        logits = head(states[pieces.ids.index(mask)], encoder.model.encoder.words.weight)
        who, noun = (encoder.tokenizer.placed([[word]])[0].ids[0] for word in (question.who, question.noun))
        return float(logits[who] - logits[noun])

    return prefers


def preference_of_reader(bundle: Bundle) -> Preference:
    """By a language model, which reads the words one after the other."""

    @torch.no_grad()
    def prefers(question: Question) -> float:
        before, who, noun, behind = question
        return _nats(bundle, before, noun + behind) - _nats(bundle, before, who + behind)

    return prefers


def _nats(bundle: Bundle, before: str, behind: str) -> float:
    """Nats of the whole text. (The part before is the same for both words; a word may join its last token.)"""
    assert bundle.tokenizer is not None
    ids = torch.as_tensor(bundle.tokenizer.encode((before + behind).encode()), dtype=torch.int64)[None]
    hidden, _ = bundle.model(ids[:, :-1], bundle.model.start(reach=bundle.reading.reach))
    return float(bundle.model.nats(hidden, ids[:, 1:]).double().sum())


def told_apart(
    prefers: Preference, pairs: Sequence[ReadingPair], ask: Callable[[Reading], Question] = asked
) -> float:
    """The share of pairs in which the instrument's owner is rather the one who sees."""
    return sum(prefers(ask(pair.instrument)) > prefers(ask(pair.attribute)) for pair in pairs) / len(pairs)


def measured_likelihoods(setting: Setting, encoder: TextEncoder, count: int, seeds: Sequence[int]) -> Results:
    """For each model that can say, the shares of pairs that it tells apart, trained and with fresh weights."""
    pairs = {
        kind: [pair for half in (0, 1) for pair in drawn(make, half, count, setting.seed)]
        for kind, make in AMBIGUITIES.items()
    }
    judges: dict[str, list[Preference]] = {}
    for name, run in named(setting.runs).items():
        bundle = _language_model(run)
        judges[name] = [preference_of_reader(one) for one in (bundle, *_fresh_readers(bundle, seeds))]
    masked = [preference_of_encoder(one) for one in (encoder, *(untrained(encoder, seed) for seed in seeds))]
    judges |= {"the encoder's masked-LM head": [one for one in masked if one is not None]}
    shares = {}
    for number, (name, some) in enumerate(judges.items()):
        setting.report("likelihoods", number, len(judges))
        if some:
            trained, *others = [_shares(prefers, pairs) for prefers in some]
            shares[name] = {"trained": trained, "untrained": others}
    return {"pairs": 2 * count, "models": shares}


def _language_model(run: Path) -> Bundle:
    bundle = load(run)
    if bundle.tokenizer is None:
        raise InputError(f"{run} has no tokenizer, so it cannot read the sentences")
    return bundle


def _fresh_readers(bundle: Bundle, seeds: Sequence[int]) -> Iterator[Bundle]:
    for seed in seeds:
        torch.manual_seed(seed)
        yield replace(bundle, model=build_language_model(bundle.model.config).eval())


def _shares(prefers: Preference, pairs: dict[str, list[ReadingPair]]) -> dict[str, float]:
    told = {kind: told_apart(prefers, some) for kind, some in pairs.items()}
    return {**told, ALONE: told_apart(prefers, pairs["noun decides"], asked_alone)}


def tell_likelihoods(likelihood: Results) -> Iterator[Block]:
    """What the page says of them."""
    if not likelihood.get("models"):
        yield "Likelihood was not measured: the encoder has no masked-LM head, and no language model was given (--run)."
        return
    yield (
        "And which reading is likelier? Behind each sentence stands “the … had the telescope”: a model that expects "
        "the woman there takes the telescope for the instrument. A pair is told apart if the woman is rather expected "
        "in the reading of the verb. A model that repeats whom the context named would do that where nothing decides "
        "too, and one that knows who has scars without the sentence."
    )
    for name, shares in likelihood["models"].items():
        for kind, control in CONTROL_OF.items():
            share = shares["trained"][kind]
            known = {
                "untrained": max(one[kind] for one in shares["untrained"]),
                "chance": 0.5,
                control.removeprefix(f"{kind}, "): shares["trained"][control],
            }
            yield Verdict(
                f"Likelihood differs between two readings of a sentence ({kind}; {name}).",
                ahead(share, max(known.values()), likelihood["pairs"]),
                f"{100 * share:.0f} % of {likelihood['pairs']} pairs are told apart; {listed(known)} ({CONDITION})",
            )
