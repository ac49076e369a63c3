"""Labelled sentences that ask an attention head one question: which word should this word attend to?

Sentences are made from templates. The templates and words of the first half choose a head, those of the second half
judge it. In each half the answer lies near and far equally often, so that no fixed distance finds it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

Kind = TypeVar("Kind")
Words = tuple[str, ...]

NOUNS: tuple[Words, Words] = (
    ("dog", "cat", "doctor", "teacher", "child", "horse", "driver", "lawyer", "farmer", "singer"),
    ("bird", "student", "nurse", "soldier", "writer", "player", "judge", "artist", "baker", "guard"),
)
VERBS: tuple[Words, Words] = (
    ("slept", "laughed", "waited", "smiled", "arrived"),
    ("worked", "cried", "ran", "left", "died"),
)
MEN: tuple[Words, Words] = (("man", "king", "father", "uncle"), ("boy", "brother", "son", "prince"))
WOMEN: tuple[Words, Words] = (
    ("woman", "queen", "mother", "aunt"),
    ("girl", "sister", "daughter", "princess"),
)
FILLERS = ("old", "small", "red", "quiet", "happy", "tall", "young", "strange")
LEADS = ("", "yesterday", "one day ,", "i think that", "as we all know ,", "in the old days ,")
"""Beginnings, so that a word's own position says nothing either."""

INSTRUMENTS: tuple[Words, Words] = (
    ("telescope", "camera", "lantern", "phone"),
    ("microscope", "mirror", "lamp", "lens"),
)
ATTRIBUTES: tuple[Words, Words] = (("scar", "wound", "cough", "fever"), ("hat", "limp", "smile", "tattoo"))
SEEING: tuple[Words, Words] = (("saw", "watched"), ("noticed", "observed"))


@dataclass(frozen=True)
class Example:
    """A sentence in words; the word `query` should attend to the word `target` rather than to other candidates."""

    words: Words
    query: int
    target: int
    candidates: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """An ambiguous sentence: does `query` attend to the verb (an instrument) or to the noun (an attribute)?"""

    words: Words
    query: int
    verb: int
    noun: int


@dataclass(frozen=True)
class ReadingPair:
    """Two sentences that differ in one word, which decides for the verb in the first and for the noun in the other."""

    instrument: Reading
    attribute: Reading


def varied(template: str, draw: random.Random) -> str:
    """The template with another beginning, and adjectives before some of its nouns."""
    parts = [
        f"{draw.choice(FILLERS)} {part}" if part[1:-1] in QUALIFIED and draw.random() < 0.5 else part
        for part in template.split()
    ]
    return f"{draw.choice(LEADS)} {' '.join(parts)}"


QUALIFIED = ("subject", "other", "first", "second", "again")


def filled(template: str, **words: str) -> tuple[Words, dict[str, int]]:
    """The words of a template like `the {a} saw the {b} .`, and the place of each of its names."""
    parts = template.split()
    places = {part[1:-1]: place for place, part in enumerate(parts) if part.startswith("{")}
    return tuple(words[part[1:-1]] if part.startswith("{") else part for part in parts), places


def _sorted(places: dict[str, int], *names: str) -> tuple[int, ...]:
    return tuple(sorted(places[name] for name in names))


def _others(words: Words, query: int) -> tuple[int, ...]:
    return tuple(place for place in range(len(words)) if place != query)


SUBJECTS: tuple[Words, Words] = (
    (
        "the {subject} near the {other} {verb} .",
        "near the {other} the {subject} {verb} .",
        "the {subject} that the {other} saw {verb} .",
        "because the {other} came , the {subject} {verb} .",
    ),
    (
        "the {subject} behind the {other} often {verb} today .",
        "behind the {other} , the {subject} often {verb} today .",
        "the {subject} who liked the {other} {verb} again .",
        "after the {other} came , the {subject} {verb} again .",
    ),
)
"""In every other template the subject is the noun that lies farther from the verb."""

PRONOUNS: tuple[Words, Words] = (
    (
        "the {first} helped the {second} because {pronoun} was tired .",
        "the {first} and the {second} talked until {pronoun} left the house .",
    ),
    (
        "when the {first} met the {second} , {pronoun} smiled .",
        "the {first} thanked the {second} again , and then {pronoun} went home .",
    ),
)
REPEATS: tuple[Words, Words] = (
    (
        "the {first} saw the {second} and then the {again} {verb} .",
        "a {first} met a {second} , so that {again} {verb} .",
    ),
    (
        "after the {first} and the {second} came , the {again} {verb} .",
        "no {first} or {second} knew why this {again} {verb} .",
    ),
)


def subjects(half: int, draw: random.Random) -> Iterator[Example]:
    """A verb and its subject; another noun is nearer in half of the sentences."""
    while True:
        for template in SUBJECTS[half]:
            subject, other = draw.sample(NOUNS[half], 2)
            words, places = filled(
                varied(template, draw), subject=subject, other=other, verb=draw.choice(VERBS[half])
            )
            yield Example(words, places["verb"], places["subject"], _sorted(places, "subject", "other"))


def pronouns(half: int, draw: random.Random) -> Iterator[Example]:
    """A pronoun and the noun of its gender, which comes first or second equally often."""
    while True:
        for template in PRONOUNS[half]:
            for pronoun in ("he", "she"):
                for first_is_man in (True, False):
                    pair = draw.choice(MEN[half]), draw.choice(WOMEN[half])
                    first, second = pair if first_is_man else pair[::-1]
                    varying = varied(template, draw)
                    words, places = filled(varying, first=first, second=second, pronoun=pronoun)
                    both = places["first"], places["second"]
                    yield Example(words, places["pronoun"], both[(pronoun == "he") != first_is_man], both)


def repeats(half: int, draw: random.Random) -> Iterator[Example]:
    """The second occurrence of a noun and the first; all other words are candidates."""
    while True:
        for template in REPEATS[half]:
            for chosen in ("first", "second"):
                first, second = draw.sample(NOUNS[half], 2)
                again = first if chosen == "first" else second
                verb = draw.choice(VERBS[half])
                varying = varied(template, draw)
                words, places = filled(varying, first=first, second=second, again=again, verb=verb)
                yield Example(words, places["again"], places[chosen], _others(words, places["again"]))


def brackets(half: int, draw: random.Random) -> Iterator[Example]:
    """A closing bracket and the one that it closes: inner and outer ones equally often, with more or fewer words."""
    while True:
        for outer in (True, False):
            runs = [" ".join(draw.choices(FILLERS, k=draw.randint(1, 3))) for _ in range(4)]
            one = f"the {draw.choice(NOUNS[half])}"
            text = (
                f"{one} ( {runs[0]} ( {runs[1]} ) {runs[2]} ) came ."
                if half == 0
                else f"then {one} {runs[0]} ( {runs[1]} ) met ( {runs[2]} ( {runs[3]} ) )"
            )
            words = tuple(text.split())
            opened, closed = matched(words)
            inner_place, outer_place = len(closed) - 2, len(closed) - 1  # brackets close from the inside
            chosen = outer_place if outer else inner_place
            yield Example(words, closed[chosen], opened[chosen], tuple(sorted(opened)))


def matched(words: Sequence[str]) -> tuple[list[int], list[int]]:
    """The places of opening brackets and of those that close them, in the order of closing."""
    waiting: list[int] = []
    opened, closed = [], []
    for place, word in enumerate(words):
        if word == "(":
            waiting.append(place)
        elif word == ")":
            opened.append(waiting.pop())
            closed.append(place)
    return opened, closed


def neighbours(half: int, draw: random.Random, offset: int) -> Iterator[Example]:
    """Any word and the one before or behind it, in sentences of all kinds."""
    kinds = [make(half, draw) for make in (subjects, pronouns, repeats)]
    while True:
        for kind in kinds:
            words = next(kind).words
            query = draw.randrange(1, len(words) - 1)
            yield Example(words, query, query + offset, _others(words, query))


@dataclass(frozen=True)
class Probe:
    """A question, in words that complete "a head attends from …"."""

    asks: str
    examples: Callable[[int, random.Random], Iterator[Example]]
    positional: bool = False  # a fixed distance is the answer by definition


PROBES: dict[str, Probe] = {
    "previous token": Probe(
        "a word to the one before it", lambda half, draw: neighbours(half, draw, -1), True
    ),
    "next token": Probe("a word to the one behind it", lambda half, draw: neighbours(half, draw, 1), True),
    "same word": Probe("a repeated word to its first occurrence", repeats),
    "brackets": Probe("a closing bracket to the one that it closes", brackets),
    "subject": Probe("a verb to its subject", subjects),
    "pronoun": Probe("a pronoun to the noun that it stands for", pronouns),
}
"""All probes, by their short names."""

CONTEXTS: tuple[Words, Words] = (
    (
        "the {owner} had a {held} . the {who} {verb} the {noun} with the {thing} .",
        "the {who} {verb} the {noun} with the {thing} , because the {owner} had found a {held} .",
    ),
    (
        "a {held} was in the hand of the {owner} when the {who} {verb} the {noun} with the {thing} .",
        "the {who} {verb} the {noun} with the {thing} . it was the {owner} who had bought a {held} .",
    ),
)
"""Who has the thing decides: the one who sees, or the one who is seen."""

ALONE = "the {who} {verb} the {noun} with the {thing} ."


def readings(half: int, draw: random.Random) -> Iterator[ReadingPair]:
    """The same clause after or before a context that decides its reading."""
    yield from _in_context(half, draw, decides=True)


def undecided(half: int, draw: random.Random) -> Iterator[ReadingPair]:
    """The control: the contexts differ in the same word, but are about another thing, so that they decide nothing."""
    yield from _in_context(half, draw, decides=False)


def _in_context(half: int, draw: random.Random, *, decides: bool) -> Iterator[ReadingPair]:
    things = INSTRUMENTS[half]
    while True:
        for template in CONTEXTS[half]:
            who, noun = _two_persons(half, draw)
            thing, other = draw.sample(things, 2)
            same = {
                "who": who,
                "noun": noun,
                "thing": thing,
                "held": thing if decides else other,
                "verb": draw.choice(SEEING[half]),
            }
            yield ReadingPair(_reading(template, owner=who, **same), _reading(template, owner=noun, **same))


def _two_persons(half: int, draw: random.Random) -> list[str]:
    """A man and a woman, in either order."""
    return draw.sample([draw.choice(MEN[half]), draw.choice(WOMEN[half])], 2)


def nouns_decide(half: int, draw: random.Random) -> Iterator[ReadingPair]:
    """One sees with a telescope, and has a scar, man or woman: the last noun decides."""
    while True:
        who, noun = _two_persons(half, draw)
        same = {"who": who, "noun": noun, "verb": draw.choice(SEEING[half])}
        things = draw.choice(INSTRUMENTS[half]), draw.choice(ATTRIBUTES[half])
        instrument, attribute = (_reading(ALONE, thing=thing, **same) for thing in things)
        yield ReadingPair(instrument, attribute)


def _reading(template: str, **given: str) -> Reading:
    words, places = filled(template, **given)
    return Reading(words, places["thing"], places["verb"], places["noun"])


AMBIGUITIES: dict[str, Callable[[int, random.Random], Iterator[ReadingPair]]] = {
    "context decides": readings,
    "noun decides": nouns_decide,
    "nothing decides": undecided,
}
"""Pairs of readings; the last kind is the control of the first."""


def drawn(
    make: Callable[[int, random.Random], Iterator[Kind]], half: int, count: int, seed: int
) -> list[Kind]:
    """The first examples of a half."""
    return list(islice(make(half, random.Random(f"{seed} {half}")), count))  # noqa: S311


def vocabulary() -> list[str]:
    """All words of all examples, for an encoder that knows no others."""
    made = [
        word
        for half in (0, 1)
        for probe in PROBES.values()
        for example in drawn(probe.examples, half, 200, 0)
        for word in example.words
    ]
    made += [
        word
        for half in (0, 1)
        for kind in AMBIGUITIES.values()
        for pair in drawn(kind, half, 50, 0)
        for reading in (pair.instrument, pair.attribute)
        for word in reading.words
    ]
    return sorted(set(made))
