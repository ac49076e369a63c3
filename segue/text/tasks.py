"""Synthetic pairs: dates in many formats and languages to be written as ISO dates; copying, reversing, parity, sums.

The split of a pair depends on its answer only, so no date of the test split occurs in training in any format.
"""

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import partial
from hashlib import sha256
from itertools import islice

from segue.errors import InputError
from segue.text.pairs import Pair, Pairs

MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
}
WEEKDAYS = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "es": "lunes martes miércoles jueves viernes sábado domingo",
    "it": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "pt": "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
    "nl": "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
}
ROMAN = "I II III IV V VI VII VIII IX X XI XII"

FORMS: dict[str, tuple[str, ...]] = {
    "en": (
        "{d} {month} {y}",
        "{month} {d}, {y}",
        "the {ordinal} of {month}, {y}",
        "{weekday}, {month} {d}, {y}",
    ),
    "de": ("{d}. {month} {y}", "{weekday}, den {d}. {month} {y}", "{weekday}, {d}. {month} {y}"),
    "fr": ("{d} {month} {y}", "le {d} {month} {y}", "{weekday} {d} {month} {y}"),
    "es": ("{d} de {month} de {y}", "el {d} de {month} de {y}", "{weekday}, {d} de {month} de {y}"),
    "it": ("{d} {month} {y}", "il {d} {month} {y}", "{weekday} {d} {month} {y}"),
    "pt": ("{d} de {month} de {y}", "{weekday}, {d} de {month} de {y}"),
    "nl": ("{d} {month} {y}", "{weekday} {d} {month} {y}"),
    "figures": (
        "{d}.{m}.{y}",
        "{d:02}.{m:02}.{y}",
        "{m}/{d}/{y}",
        "{y}/{m:02}/{d:02}",
        "{y}{m:02}{d:02}",
        "{d}.{roman}.{y}",
    ),
}
"""Dots separate day, month and year; slashes separate month, day and year: no format has two meanings."""


def written(day: date, draw: random.Random) -> str:
    """The date in a random format."""
    language = draw.choice(list(FORMS))
    form = draw.choice(FORMS[language])
    spoken = language if language in MONTHS else "en"
    text = form.format(
        d=day.day,
        m=day.month,
        y=day.year,
        month=MONTHS[spoken].split()[day.month - 1],
        weekday=WEEKDAYS[spoken].split()[day.weekday()],
        ordinal=_ordinal(day.day),
        roman=ROMAN.split()[day.month - 1],
    )
    return draw.choice((text, text, text.lower(), text.upper()))


def _ordinal(number: int) -> str:
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _a_date(draw: random.Random) -> Pair:
    day = date(1900, 1, 1) + timedelta(days=draw.randrange(73_049))  # up to the end of 2099
    return written(day, draw).encode(), day.isoformat().encode()


def copied(draw: random.Random, length: int) -> Pair:
    text = _random_text(draw, "abcdefghij", length)
    return text, text


def backwards(draw: random.Random, length: int) -> Pair:
    text = _random_text(draw, "abcdefghij", length)
    return text, text[::-1]


def parity(draw: random.Random, length: int) -> Pair:
    """After every bit, the parity of the bits so far: 1 if the number of ones is odd."""
    bits, odd, answer = _random_text(draw, "01", length), 0, ""
    for bit in bits:
        odd ^= bit - ord("0")
        answer += str(odd)
    return bits, answer.encode()


def addition(draw: random.Random, length: int) -> Pair:
    """Add two numbers of so many digits. Columns come lowest digit first: 12 + 49 is the pair `2914`, `160`."""
    one, other = (draw.randrange(10**length) for _ in range(2))
    columns = (f"{one // 10**place % 10}{other // 10**place % 10}" for place in range(length))
    return "".join(columns).encode(), f"{one + other:0{length + 1}d}"[::-1].encode()


def _random_text(draw: random.Random, letters: str, length: int) -> bytes:
    return "".join(draw.choice(letters) for _ in range(length)).encode()


SIZED: dict[str, Callable[[random.Random, int], Pair]] = {
    "copy": copied,
    "reverse": backwards,
    "parity": parity,
    "addition": addition,
}
"""Tasks whose pairs can have any length."""

MAX_LENGTH = 12
"""Symbols, or digits of each number, in the pairs of `task`."""


def _of_any_length(make: Callable[[random.Random, int], Pair], draw: random.Random) -> Pair:
    return make(draw, draw.randint(1, MAX_LENGTH))


TASKS: dict[str, Callable[[random.Random], Pair]] = {
    "dates": _a_date,
    **{name: partial(_of_any_length, make) for name, make in SIZED.items()},
}


def task(name: str, count: int, seed: int = 0) -> dict[str, Pairs]:
    """`count` pairs to train on, and a twentieth as many each for validation and test."""
    if name not in TASKS:
        raise InputError(f"there is no task '{name}'; there are {', '.join(TASKS)}")
    held_out = max(1, count // 20)
    sizes = {"train": count, "valid": held_out, "test": held_out}
    return {split: _drawn(TASKS[name], split, size, seed) for split, size in sizes.items()}


def _drawn(make: Callable[[random.Random], Pair], split: str, count: int, seed: int) -> Pairs:
    def endless() -> Iterator[Pair]:
        draw = random.Random(f"{seed} {split}")  # noqa: S311 (nothing here is secret)
        while True:
            pair = make(draw)
            if _split_of(pair[1]) == split:
                yield pair

    return lambda: islice(endless(), count)


def _split_of(answer: bytes) -> str:
    place = sha256(answer).digest()[0] % 20
    return "valid" if place == 0 else "test" if place == 1 else "train"
