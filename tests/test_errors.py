"""Errors are one line of readable length, whatever is quoted in them."""

from segue.errors import MAX_CHARACTERS, SegueError


def test_what_is_quoted_makes_no_second_line() -> None:
    assert str(SegueError("found 'a\nb\r\nc'; try d")) == "found 'a b c'; try d"


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    told = str(SegueError(f"found {'x' * 10**6}; try y"))
    assert told.startswith("found xxx")
    assert told.endswith("x; try y")
    assert len(told) <= MAX_CHARACTERS + 3
