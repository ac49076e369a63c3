"""Which reading of an ambiguous sentence a model finds likelier, by what it expects behind it.

    the woman saw the man with the telescope . the _____ had the telescope .

A model that takes the telescope for the instrument expects the woman there. In the other reading of a pair the man has
it, or the thing is a scar, and the man is expected. The change must be larger than in a control: behind a context that
decides nothing, for a model that repeats whom the context named, or without the sentence, for one that knows who has
scars. A context that decides says who has the thing, so looking that up is enough; only the last noun asks for a
reading.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from segue.checkpoint import Bundle, TextEncoder, load, task_of
from segue.errors import InputError
from segue.infer.embed import embed_tokens, read_pieces
from segue.interop.encoders import load_encoder
from segue.lab.experiment import Block, Results, Setting, Verdict
from segue.lab.probes import AMBIGUITIES, Reading, ReadingPair, drawn
from segue.lab.shares import CONDITION, ahead, listed
from segue.lab.trained import named
from segue.lab.word_attention import untrained
from segue.nn.models import build_language_model
from segue.nn.task_encoder import MaskedHead
from segue.text.wordpiece import MASK

CONTROL_OF = {"context decides": "where nothing decides", "noun decides": "without the sentence"}
"""The readings that are told apart, each with what else would tell them apart."""

BESIDE = "the encoder's masked-LM head"


class Question(NamedTuple):
    """Who has the thing? The text before and behind the gap, and the two who may fill it."""

    before: str
    who: str
    noun: str
    behind: str


Preference = Callable[[Sequence[Question]], Tensor]
"""(questions,) Nats by which the one who sees is likelier than the one who is seen."""


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
    head, table = encoder.model.head, encoder.model.encoder.words.weight
    mask = encoder.tokenizer.file.token_to_id(MASK)
    if not isinstance(head, MaskedHead) or mask is None:
        return None

    @torch.no_grad()
    def prefers(questions: Sequence[Question]) -> Tensor:
        pieces = read_pieces(encoder, [f"{one.before}{MASK}{one.behind}" for one in questions])
        if not all(mask in one.ids for one in pieces):
            raise InputError(f"the encoder's tokenizer drops {MASK} from the probes; give another encoder")
        places = [one.ids.index(mask) for one in pieces]
        states = embed_tokens(encoder, pieces)
        logits = head(torch.stack([text[place] for text, place in zip(states, places, strict=True)]), table)
        persons = [encoder.tokenizer.placed([one.who, one.noun]) for one in questions]
        ids = torch.tensor([[person.ids[0] for person in pair] for pair in persons])
        preference: Tensor = logits.gather(1, ids).diff(dim=1).squeeze(1).neg()
        return preference

    return prefers


def preference_of_reader(bundle: Bundle) -> Preference:
    """By a language model, which reads the words one after the other."""

    @torch.no_grad()
    def prefers(questions: Sequence[Question]) -> Tensor:
        return torch.tensor(
            [
                _nats(bundle, before + noun + behind) - _nats(bundle, before + who + behind)
                for before, who, noun, behind in questions
            ]
        )

    return prefers


def _nats(bundle: Bundle, text: str) -> float:
    """Nats of all tokens of a text but the first, read in segments as the bundle reads."""
    assert bundle.tokenizer is not None
    tokens = torch.as_tensor(bundle.tokenizer.encode(text.encode()), dtype=torch.int64)[None]
    model, memory, nats = bundle.model, bundle.model.start(reach=bundle.reading.reach), 0.0
    inputs, targets = (side.split(bundle.reading.segment, dim=1) for side in (tokens[:, :-1], tokens[:, 1:]))
    for segment, wanted in zip(inputs, targets, strict=True):
        hidden, memory = model(segment, memory)
        nats += float(model.nats(hidden, wanted).double().sum())
    return nats


def shifts(
    prefers: Preference, pairs: Sequence[ReadingPair], ask: Callable[[Reading], Question] = asked
) -> Tensor:
    """(pairs,) By how much the one who sees is expected more in the reading of the verb."""
    instruments, attributes = [pair.instrument for pair in pairs], [pair.attribute for pair in pairs]
    return prefers([*map(ask, instruments)]) - prefers([*map(ask, attributes)])


Judges = dict[str, list[Preference]]
"""By name, a model's preference and those of the same model with fresh weights."""


def likelihood_judges(setting: Setting, encoder: TextEncoder, seeds: Sequence[int]) -> Judges:
    """The given runs, and the encoder if it has a masked-LM head."""
    judges = {name: _of_run(run, seeds) for name, run in named(setting.runs).items()}
    beside = _of_encoder(encoder, seeds)
    return judges | ({BESIDE: beside} if beside else {})


def _of_run(run: Path, seeds: Sequence[int]) -> list[Preference]:
    if task_of(run) == "encoding":
        preferences = _of_encoder(load_encoder(run), seeds)
        if not preferences:
            raise InputError(
                f"{run} is an encoder without a masked-LM head, which cannot tell what is likely; "
                "train one: segue train bert-cpu"
            )
        return preferences
    bundle, fresh = load(run), []
    if bundle.tokenizer is None:
        raise InputError(f"{run} has no tokenizer, so it cannot read the sentences")
    for seed in seeds:
        torch.manual_seed(seed)
        fresh.append(replace(bundle, model=build_language_model(bundle.model.config).eval()))
    return [preference_of_reader(one) for one in (bundle, *fresh)]


def _of_encoder(encoder: TextEncoder, seeds: Sequence[int]) -> list[Preference]:
    """The preferences of an encoder and of fresh ones; an empty list if it has no masked-LM head."""
    encoders = (encoder, *(untrained(encoder, seed) for seed in seeds))
    return [prefers for one in encoders if (prefers := preference_of_encoder(one))]


def measured_likelihoods(setting: Setting, judges: Judges, count: int) -> Results:
    """How many pairs of both halves each model tells apart, with its weights and with fresh ones."""
    pairs = {
        kind: [pair for half in (0, 1) for pair in drawn(make, half, count, setting.seed)]
        for kind, make in AMBIGUITIES.items()
    }
    models = {}
    for number, (name, (trained, *fresh)) in enumerate(judges.items()):
        setting.report("likelihoods", number, len(judges))
        models[name] = {
            "trained": _told_apart(trained, pairs),
            "untrained": [_told_apart(one, pairs) for one in fresh],
        }
    return {"pairs": 2 * count, "models": models}


def _told_apart(prefers: Preference, pairs: dict[str, list[ReadingPair]]) -> Results:
    """Of each kind, the shares of pairs: told apart, told apart in its control, and shifted by more than there."""
    readings = {kind: shifts(prefers, some) for kind, some in pairs.items()}
    alone = shifts(prefers, pairs["noun decides"], asked_alone)
    controls = {"context decides": readings["nothing decides"], "noun decides": alone}
    return {
        kind: {
            "told": _share(readings[kind]),
            "control": _share(control),
            "more": _share(readings[kind] - control),
        }
        for kind, control in controls.items()
    }


def _share(values: Tensor) -> float:
    return (values > 0).double().mean().item()


def tell_likelihoods(likelihood: Results) -> Iterator[Block]:
    """What the page says of them."""
    if not likelihood.get("models"):
        yield (
            "Likelihood was not measured: the encoder has no masked-LM head, and no language model was given "
            "(--run)."
        )
        return
    yield (
        "And which reading is likelier? Behind each sentence stands “the … had the telescope”, or the scar, where that "
        "is the last noun. A model that takes the telescope for the instrument expects the woman there, more than in "
        "the other reading of the pair. But one that repeats whom the context named does so too, where the context is "
        "about another thing and decides nothing; and one that knows who has scars, without the sentence. So the "
        "change must be larger than it is there. A context that decides says who has the thing, so looking that up is "
        "enough; only the last noun asks for a reading."
    )
    for name, shares in likelihood["models"].items():
        for kind, control in CONTROL_OF.items():
            one = shares["trained"][kind]
            known = {"untrained": max(other[kind]["more"] for other in shares["untrained"]), "chance": 0.5}
            yield Verdict(
                f"Likelihood differs between two readings of a sentence ({kind}; {name}).",
                ahead(one["more"], max(known.values()), likelihood["pairs"]),
                f"the change is larger than {control} in {100 * one['more']:.0f} % of {likelihood['pairs']} pairs; "
                f"{listed(known)} ({CONDITION}); it is in the right direction in {100 * one['told']:.0f} %, {control} "
                f"in {100 * one['control']:.0f} %",
            )
