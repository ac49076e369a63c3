"""The note on tuning counts the sides whose rate is the highest that they tried."""

from segue.lab.tried_rates import edge_note


def settings(*rates: float) -> list[dict[str, object]]:
    adam = {"optimizer": "adamw", "learning_rate": 9.0}
    return [adam, *({"optimizer": "muon", "learning_rate": rate} for rate in rates)]


def test_sides_at_the_edge_are_counted_whatever_their_shape() -> None:
    results = {
        "models": {"xl": {"optimizer": "muon", "learning_rate": 0.02, "tries": settings(0.01, 0.02)}},
        "rows": [{"learning_rate": 0.01, "tries": {"0.005": 3.0, "0.01": 2.0}}],
        "sides": {"rnn": {"chosen": settings(0.01)[1], "tries": settings(0.01, 0.02)}},
    }
    assert edge_note(results).startswith("Tuning: 2 of 3 sides took the highest")
    assert "(0.01, 0.02)" in edge_note(results)


def test_nothing_is_said_where_nothing_was_tuned_or_no_side_is_at_the_edge() -> None:
    assert edge_note({"bits": [1.0], "models": {"xl": {"learning_rate": 0.01, "tries": []}}}) == ""
    assert edge_note({"optimizer": "muon", "learning_rate": 0.01, "tries": settings(0.01, 0.02)}) == ""
