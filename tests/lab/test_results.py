"""The published tables: the text names the data sets that the tables show."""

import json
import lzma
from pathlib import Path

import pytest

from runs import make_corpus
from segue.errors import InputError
from segue.lab import results
from segue.lab.compressors import measured_compressors, xz
from segue.lab.experiment import Setting, Table


def ours(data: str) -> dict[str, object]:
    beside = dict.fromkeys(("word perplexity", "parameters", "training bytes", "cpu hours", "scored tokens"))
    return {"model": "a model", "data": data, "bits per byte": 2.0, "from": "a run", "quick": True, **beside}


def test_the_sets_that_are_named_are_those_that_are_shown() -> None:
    first, *blocks = results.tell({"ours": [ours("enwik8"), ours("a log")]})
    assert isinstance(first, str)
    shown = [block.caption.partition(",")[0] for block in blocks if isinstance(block, Table)][1:]
    assert len(shown) == 6
    assert f"{len(shown)} data sets are shown, 1 of them with our results: {', '.join(shown)}." in first
    assert "five" not in results.EXPERIMENT.claim


def test_records_of_every_experiment_that_is_shown_give_their_rows(tmp_path: Path) -> None:
    """The committed records have the shape that today's experiments write: a test of theirs holds their versions."""
    committed = Path(__file__).parents[2] / "docs" / "results" / "lab"
    for name in ("ablation", "recl", "adaptation", "words"):
        (tmp_path / f"{name}.json").write_bytes((committed / f"{name}.json").read_bytes())
    shown = results.measure(Setting(make_corpus(tmp_path), tmp_path, quick=True))
    assert {row["from"] for row in shown["ours"]} == {"ablation", "recl", "adaptation"}
    assert all(row["bits per byte"] > 1 and row["training bytes"] is None for row in shown["ours"])
    assert shown["words"]["rows"]


def published_rows(block: Table) -> dict[str, list[str]]:
    return {row[0]: list(row) for row in block.rows}


def test_validation_columns_and_our_figures_stand_beside_published_ones() -> None:
    rows = {"lstm": {"valid": 2.1, "test": 2.2, "parameters": 2_400_000}}
    models = {"data": "enwik8", "tokens": 1000, "rows": rows}
    tables = [block for block in results.tell({"ours": [], "models": models}) if isinstance(block, Table)]
    (words,) = (table for table in tables if table.caption.startswith("wikitext-103"))
    lines, head = published_rows(words), list(words.head)
    assert lines["Transformer-XL, standard"][head.index("validation")] == "23.1"
    assert lines["LSTM"][head.index("validation")] == "–"
    assert lines["LSTM"][head.index("the same model here")] == "2.200 (2.4M)"
    assert lines["TCN"][head.index("the same model here")] == "–"  # it has no row yet
    assert "bits per byte of enwik8 after 1,000 tokens" in words.caption
    assert all("the same model here:" not in table.caption.lower() for table in tables if table is not words)


def test_models_of_words_stand_beside_the_rows_of_their_architecture() -> None:
    rows = {
        "LSTM + neural cache": {"valid": 310.0, "test": 300.0},
        "Adaptive input": {"valid": 2.0, "test": 1.0},
    }
    blocks = results.tell({"ours": [], "words": {"data": "wikitext-2", "rows": rows}})
    tables = [block for block in blocks if isinstance(block, Table)]
    (words,) = (table for table in tables if "the same model on words" in table.head)
    assert words.caption.startswith("wikitext-103")
    assert "perplexity of wikitext-2" in words.caption
    lines, place = published_rows(words), list(words.head).index("the same model on words")
    assert lines["LSTM + neural cache"][place] == "300.0 (310.0)"
    assert lines["Adaptive input"][place] == "1.0 (2.0)"
    assert lines["TCN"][place] == "–"


def test_figures_of_models_are_means_over_seeds(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    row = {"valid": [2.0, 2.2], "test": [2.1, 2.3], "parameters": 5, "note": ""}
    path.write_text(json.dumps({"data": "enwik8", "tokens": 7, "rows": {"gru": row}}))
    figures = results.models_figures(path)["rows"]["gru"]
    assert (figures["valid"], figures["test"]) == (pytest.approx(2.1), pytest.approx(2.2))
    for broken in ('{"trained": {}}', '{"data": "x", "tokens": 1, "rows": {"gru": 3}}', "[]", "nothing"):
        path.write_text(broken)
        with pytest.raises(InputError):
            results.models_figures(path)


def test_compressors_are_measured_and_gain_from_text_before(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "data", documents=60, words=60)
    for row in measured_compressors(Setting(corpus, tmp_path, quick=True)):
        assert 0 < row["after training text"] < row["alone"] < 8.5
    blocks = results.tell(
        {"ours": [], "compressors": measured_compressors(Setting(corpus, tmp_path, quick=True))}
    )
    (table,) = (block for block in blocks if isinstance(block, Table) and block.head[0] == "compressor")
    assert {row[-1] for row in table.rows} == {"measured here"}
    missing = "zstd" not in " ".join(row[0] for row in table.rows)
    assert missing == any(isinstance(block, str) and "pip install zstandard" in block for block in blocks)


def test_xz_is_that_of_the_command_line() -> None:
    text = b"a quiet film, " * 100
    assert xz(text) == len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) < len(text) / 5
