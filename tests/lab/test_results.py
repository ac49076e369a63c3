"""The published tables: the text names the data sets that the tables show."""

from segue.lab import results
from segue.lab.experiment import Table


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
