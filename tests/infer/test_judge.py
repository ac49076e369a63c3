"""Figures of summaries: ROUGE is what its definition says, on cases small enough to count by hand."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from segue.checkpoint import Bundle, Translator
from segue.cli import app
from segue.config import Reach, Reading, Seq2SeqConfig, Translating
from segue.errors import SegueError
from segue.infer.judge import judge, measured, rouge
from segue.nn.seq2seq import Seq2Seq
from segue.progress import silent
from segue.text.pairs import PairsConfig, open_pairs, prepare_pairs
from segue.text.tokenizer import ByteTokenizer
from support import build, shape


def installed() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed: pip install 'segue-lm[rouge]'")


def test_rouge_counts_words_pairs_of_words_and_the_longest_common_subsequence() -> None:
    installed()
    scores = rouge(["the ship saw the sea"], ["the sea saw a ship"])
    assert {name: score for name, (score, _) in scores.items()} == {
        "ROUGE-1": pytest.approx(100 * 4 / 5),  # the, ship, saw, sea of five words on each side
        "ROUGE-2": pytest.approx(100 / 4),  # the sea
        "ROUGE-L": pytest.approx(100 * 2 / 5),  # the … saw, or the … sea
    }
    assert all("stem:yes" in signature for _, signature in scores.values())


def test_rouge_is_the_mean_over_summaries() -> None:
    installed()
    scores = rouge(["Ships sailed.", "", "no"], ["ship sails", "the sea", "never"])
    assert [score for score, _ in scores.values()] == pytest.approx(
        [100 / 3] * 3
    )  # stems, without case and marks
    with pytest.raises(ValueError, match="longer than argument"):
        rouge(["a"], ["a", "b"])


def translator() -> Translator:
    config = Seq2SeqConfig(vocab=259, width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1)
    return Translator(Seq2Seq(config), Translating(longest=4, beam_width=1), ByteTokenizer(), ByteTokenizer())


def test_a_split_is_judged_by_rouge(tmp_path: Path) -> None:
    installed()
    prepare_pairs(
        {"train": lambda: iter([(b"sea", b"ship")])}, tmp_path / "data", PairsConfig(size=257), silent
    )
    pairs = open_pairs(tmp_path / "data")
    ours = translator()
    ours = Translator(ours.model, ours.translating, pairs.source, pairs.target)
    assert list(judge(ours, pairs, "train", metric="rouge").figures) == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
    ours.save(tmp_path / "bundle")
    words = ["eval", str(tmp_path / "bundle"), "--data", str(tmp_path / "data"), "--split", "train"]
    done = CliRunner().invoke(app, [*words, "--metric", "rouge"], env={"SEGUE_THREADS": "1"})
    assert done.exit_code == 0, done.exception
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]


@pytest.mark.parametrize(
    ("metric", "package", "extra"), [("rouge", "rouge_score", "rouge"), ("bleu", "sacrebleu", "mt")]
)
def test_a_package_that_is_missing_is_told_before_anything_is_translated(
    metric: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "lines").write_text("sea\n")
    lines, nowhere = str(tmp_path / "lines"), str(tmp_path / "nowhere")
    done = CliRunner().invoke(app, ["translate", nowhere, lines, "--reference", lines, "--metric", metric])
    assert isinstance(done.exception, SegueError)
    assert f"pip install 'segue-lm[{extra}]'" in str(done.exception)


def test_a_language_model_has_no_texts_to_compare(tmp_path: Path) -> None:
    Bundle(build(shape(vocab=256)), Reading(segment=4, reach=Reach(memory=4)), ByteTokenizer()).save(
        tmp_path / "bundle"
    )
    done = CliRunner().invoke(app, ["eval", str(tmp_path / "bundle"), "--metric", "rouge"])
    assert isinstance(done.exception, SegueError)
    assert "--metric rouge compares texts of an encoder-decoder" in str(done.exception)


def test_case_counts_for_bleu_unless_it_does_not() -> None:
    pytest.importorskip("sacrebleu")
    sentence = ["The ship saw the sea"]
    figures = measured("bleu", [sentence[0].lower()], sentence)
    assert list(figures) == ["BLEU", "chrF"]
    assert (
        figures["BLEU"].score
        < 99
        < measured("bleu", [sentence[0].lower()], sentence, lower=True)["BLEU"].score
    )
