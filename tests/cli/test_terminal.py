"""Control characters in text are escaped on a terminal, and unchanged in a pipe."""

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import segue
from segue.checkpoint import Bundle
from segue.cli import app, main
from segue.cli.progress import Progress
from segue.cli.terminal import draw, echo, printable, tell
from segue.config import Reach, Reading, XLConfig
from segue.text.tokenizer import ByteTokenizer

ANY = st.text(st.characters())  # surrogates too
ATTACK = "12:00 ERROR\r\x1b[2K\x1b]0;title\x07fine \u202egnp.exe\u2066\u2028\x9b1A\x7f\U000e0041"


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_what_steers_hides_or_turns_round_is_escaped() -> None:
    assert printable(ATTACK) == (
        r"12:00 ERROR\x0d\x1b[2K\x1b]0;title\x07fine \u202egnp.exe\u2066\u2028\x9b1A\x7f\U000e0041"
    )
    assert printable("half \ud83d") == r"half \ud83d"
    assert printable("\ufeff\u200b\u200e\u00ad\u061c\x00\x85") == r"\ufeff\u200b\u200e\xad\u061c\x00\x85"


def test_what_can_be_read_stays() -> None:
    text = "the café\n\tin 東京 \u00a0 نمی\u200cخواهم 👩\u200d👩\u200d👧 \\x1b e\u0301"
    assert printable(text) == text
    assert printable("a\nb\tc", keep="") == r"a\x0ab\x09c"


@given(ANY, ANY)
def test_pieces_are_escaped_as_the_whole_is(left: str, right: str) -> None:
    assert printable(left) + printable(right) == printable(left + right)


@given(ANY)
def test_nothing_is_left_to_escape(text: str) -> None:
    assert printable(printable(text)) == printable(text)
    printable(text).encode()
    assert {sign for sign in printable(text) if sign < " "} <= {"\n", "\t"}


@given(ANY)
def test_a_pipe_gets_the_text_and_a_terminal_what_can_be_seen(text: str) -> None:
    for screen, wanted in (
        (io.StringIO(newline=""), text.encode(errors="backslashreplace").decode()),
        (Screen(newline=""), printable(text)),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            echo(text)
            echo(text, end="")
        assert screen.getvalue() == f"{wanted}\n{wanted}"


@pytest.mark.parametrize("kind", [io.StringIO, Screen])
def test_notes_and_errors_are_one_line_everywhere(kind: type[io.StringIO]) -> None:
    screen = kind(newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        tell(f"no file {ATTACK}\nsegue: all is well")
    assert screen.getvalue() == f"no file {printable(ATTACK)}\\x0asegue: all is well\n"


def test_progress_draws_over_itself_on_a_terminal_alone() -> None:
    for kind, wanted in ((io.StringIO, "a\\x1b\nb\n"), (Screen, "\r\x1b[2Ka\\x1b\r\x1b[2Kb\r\x1b[2K")):
        screen = kind(newline="")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", screen)
            with Progress("tokens") as progress:
                progress.show("a\x1b")
                draw("b")
        assert screen.getvalue() == wanted


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal") / "bundle"
    model = segue.TransformerXL(XLConfig(vocab=256, width=8, layers=1, heads=2))
    Bundle(model, Reading(segment=8, reach=Reach(memory=8)), ByteTokenizer()).save(folder)
    return folder


def seen(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO], *words: object) -> str:
    screen = kind(newline="")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("SEGUE_THREADS", "1")
    app([*map(str, words)], standalone_mode=False)
    return screen.getvalue()


def test_a_log_cannot_erase_its_own_line(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text(f"{ATTACK}\nall is well\n")
    words = ("score", bundle, tmp_path / "log")
    on_screen = seen(monkeypatch, Screen, *words)
    assert printable(ATTACK) in on_screen
    assert "\x1b" not in on_screen
    assert ATTACK in seen(monkeypatch, io.StringIO, *words)


@pytest.mark.parametrize("samples", [1, 2])
def test_what_a_model_says_is_escaped_piece_by_piece(
    samples: int, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", bundle, "--prompt", "\x1b[2J", "--tokens", 200, "--seed", 1, "--samples", samples)
    whole = seen(monkeypatch, io.StringIO, *words)
    assert any(ord(sign) < 32 for sign in whole.replace("\x1b", "").replace("\n", ""))
    assert seen(monkeypatch, Screen, *words) == printable(whole)


def test_a_mistake_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["segue", "prepare", "no\x1b[2J\nsegue: done", "-o", "x"])
    with pytest.raises(SystemExit):
        main()
    complaint = capsys.readouterr().err
    assert complaint.startswith(r"segue: there is no file, folder or data set 'no\x1b[2J segue: done'; ")
    assert complaint.count("\n") == 1
