"""Pairs that need no data: dates in many forms and languages to be written in one, strings to copy or to reverse.

Which split a pair belongs to depends on its answer alone, so no date that is tested was ever seen, in whatever form.
"""

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
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
"""Dots stand between day, month and year, slashes between month, day and year: nothing has two meanings."""


def written(day: date, draw: random.Random) -> str:
    """The date in one of its forms."""
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


def _letters(draw: random.Random) -> bytes:
    return "".join(draw.choice("abcdefghij") for _ in range(draw.randint(1, 12))).encode()


def _copied(draw: random.Random) -> Pair:
    text = _letters(draw)
    return text, text


def _reversed(draw: random.Random) -> Pair:
    text = _letters(draw)
    return text, text[::-1]


TASKS: dict[str, Callable[[random.Random], Pair]] = {"dates": _a_date, "copy": _copied, "reverse": _reversed}


def task(name: str, count: int, seed: int = 0) -> dict[str, Pairs]:
    """So many pairs to train on, and a twentieth as many for each of validation and test."""
    if name not in TASKS:
        raise InputError(f"there is no task '{name}'; there are {', '.join(TASKS)}")
    few = max(1, count // 20)
    sizes = {"train": count, "valid": few, "test": few}
    return {split: _drawn(TASKS[name], split, size, seed) for split, size in sizes.items()}


def _drawn(make: Callable[[random.Random], Pair], split: str, count: int, seed: int) -> Pairs:
    def endless() -> Iterator[Pair]:
        draw = random.Random(f"{seed} {split}")  # noqa: S311 (nothing here is secret)
        while True:
            pair = make(draw)
            if _home(pair[1]) == split:
                yield pair

    return lambda: islice(endless(), count)


def _home(answer: bytes) -> str:
    place = sha256(answer).digest()[0] % 20
    return "valid" if place == 0 else "test" if place == 1 else "train"
