"""`segue translate` and `segue generate`, in this process, with untrained models."""

import gc
import io
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

import segue
from segue.checkpoint import Bundle, Translator
from segue.cli import app
from segue.cli.translate import translate
from segue.config import Reach, Reading, RecurrentSeq2SeqConfig, Seq2SeqConfig, Translating, XLConfig
from segue.errors import SegueError
from segue.nn.recurrent_seq2seq import RecurrentSeq2Seq
from segue.nn.seq2seq import Seq2Seq
from segue.text.learn import train_bpe, train_characters, train_words
from segue.text.tokenizer import (
    ByteTokenizer,
    Tokenizer,
    word_tokenizer,
)


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    assert done.exit_code == 0, done.exception
    return done.stdout


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator") / "bundle"
    config = Seq2SeqConfig(vocab=258, width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1)
    Translator(Seq2Seq(config), Translating(longest=4), ByteTokenizer(), ByteTokenizer()).save(folder)
    return folder


class Pipe(io.RawIOBase):
    """Empty lines, and after them a count of the translations that are still in memory."""

    def __init__(self, lines: int) -> None:
        self.lines, self.kept = lines, 0

    def __iter__(self) -> Iterator[bytes]:
        yield from (b"\n" for _ in range(self.lines))
        lists = (one for one in gc.get_objects() if type(one) is list and len(one) > self.lines // 2)
        self.kept = max((len(one) for one in lists if not any(one)), default=0)


@pytest.mark.parametrize("attention", [False, True])
def test_translations_of_an_endless_pipe_are_not_kept(
    attention: bool, translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Pipe(5000)
    monkeypatch.setattr(sys, "stdin", type("Input", (), {"buffer": pipe}))
    page = tmp_path / "page.html" if attention else None
    nothing = pytest.raises(SegueError, match="every line was empty") if attention else nullcontext()
    with nothing:
        translate(translator, attention=page, threads=1)
    assert pipe.kept == 0


def test_a_page_shows_the_first_line_that_is_not_empty(translator: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n\nthe sea\nhome\n")
    lines = told("translate", translator, tmp_path / "lines", "--attention", tmp_path / "page.html")
    assert len(lines.splitlines()) == 4
    assert "the sea" in (tmp_path / "page.html").read_text()


def test_longer_sources_and_translations_can_be_allowed(translator: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("the sea\n")
    warnings = []
    for longest in (3, 7):
        words = ["translate", str(translator), str(tmp_path / "lines"), "--longest", str(longest)]
        done = CliRunner().invoke(app, words, env={"SEGUE_THREADS": "1"})
        assert done.exit_code == 0, done.exception
        warnings.append("1 lines had more than 3 tokens" in done.stderr)
    assert warnings == [True, False]


def recurrent(folder: Path, *, attention: bool) -> Path:
    config = RecurrentSeq2SeqConfig(vocab=258, width=8, layers=1, attention=attention)
    Translator(RecurrentSeq2Seq(config), Translating(longest=9), ByteTokenizer(), ByteTokenizer()).save(
        folder
    )
    return folder


def test_attention_of_a_recurrent_translator_is_drawn(tmp_path: Path) -> None:
    run = recurrent(tmp_path / "rnn", attention=True)
    (tmp_path / "lines").write_text("the sea\n")
    told("translate", run, tmp_path / "lines", "--attention", tmp_path / "first.html")
    told("attention", run, "--text", "the sea", "-o", tmp_path / "second.html")
    for name in ("first", "second"):
        page = (tmp_path / f"{name}.html").read_text()
        assert '"name": "decoder to encoder"' in page
        assert '"heads": 1' in page


def test_a_recurrent_translator_without_attention_has_none_to_draw(tmp_path: Path) -> None:
    run = recurrent(tmp_path / "rnn", attention=False)
    done = CliRunner().invoke(
        app, ["attention", str(run), "--text", "sea", "-o", str(tmp_path / "page.html")]
    )
    assert isinstance(done.exception, SegueError)
    assert "this translator has no attention to show" in str(done.exception)
    assert not (tmp_path / "page.html").exists()


def test_a_reference_needs_them_all(translator: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("the sea\nhome\n")
    done = CliRunner().invoke(
        app, ["translate", str(translator), str(tmp_path / "lines"), "--reference", str(tmp_path / "lines")]
    )
    assert done.exit_code == 0
    assert done.stderr.count("BLEU") == 2


def without_newline() -> dict[str, Tokenizer]:
    return {
        "bytes": ByteTokenizer(b"abc "),
        "characters": train_characters([b"the sea"], 1),
        "words without lines": word_tokenizer(["<unk>", "sea", "the"]),
        "words": train_words([b"the sea"], 1),
        "bpe": train_bpe([b"the sea"], 257),
        "all bytes": ByteTokenizer(),
    }


@pytest.mark.parametrize("kind", without_newline())
def test_without_a_prompt_it_begins_with_what_it_knows(kind: str, tmp_path: Path) -> None:
    tokenizer = without_newline()[kind]
    model = segue.TransformerXL(XLConfig(vocab=tokenizer.size, width=8, layers=1, heads=2))
    Bundle(model, Reading(segment=8, reach=Reach(memory=8)), tokenizer).save(tmp_path / "bundle")
    words = ["generate", tmp_path / "bundle", "--tokens", 3, "--seed", 1]
    said = told(*words)
    assert said.startswith("\n") == (kind in ("words", "bpe", "all bytes"))
    assert told(*words, "--prompt", "") == said
    assert told(*words, "--samples", 2).startswith("--- 1\n")
