"""Verdicts have power: figures of untrained models do not count as shown."""

from segue.lab import algorithms, confusion, extrapolation
from segue.lab.experiment import Block, Verdict
from segue.lab.statistics import MARGIN, fewer_bits


def shown(blocks: list[Block], claim: str) -> bool:
    (verdict,) = (block for block in blocks if isinstance(block, Verdict) and claim in block.claim)
    return verdict.shown


def test_fewer_bits_are_fewer_with_every_seed_and_by_enough() -> None:
    assert fewer_bits([2.0, 2.1], [2.1, 2.2])
    assert not fewer_bits([2.0, 2.3], [2.1, 2.2])
    assert not fewer_bits([2.0, 2.0], [2.0 + MARGIN / 2, 2.0 + MARGIN / 2])


def side(*bits: float) -> dict[str, object]:
    lengths = [64 * times for times in extrapolation.LENGTH_FACTORS]
    return {"bits": [list(bits)], "trained": 64, "lengths": lengths, "clamps": [[31] * len(lengths)]}


def test_lengths_that_make_no_difference_are_neither_gain_nor_loss() -> None:
    flat = side(7.9106, 7.9106, 7.9105, 7.9107, 7.9104)
    worse = side(2.2, 2.3, 2.4, 2.5, 2.6)
    better = side(2.2, 2.1, 2.0, 2.1, 2.2)
    for sides, wanted in (((flat, flat), (False, False)), ((better, worse), (True, True))):
        results = {"sides": dict(zip(("xl-clamp", "shaw"), sides, strict=True)), "tokens": 1, "scored": 1}
        blocks = extrapolation.tell(results)
        assert (shown(blocks, "gains from a longer context"), shown(blocks, "get worse")) == wanted
        assert any(isinstance(block, str) and "31 at 64" in block for block in blocks)


def test_a_memory_is_of_little_use_only_beside_one_that_is_of_use() -> None:
    def verdict(xl: float, confused: float) -> bool:
        bits = {"xl": xl, "onward": 7.9, "confused": confused, "isolated": 7.9}
        sides = {side: [{"bits": value, "told apart": 0.0}] for side, value in bits.items()}
        return shown(confusion.tell({"sides": sides, "trained": 1, "scored": 1}), "of little use")

    assert verdict(xl=7.5, confused=7.95)
    assert not verdict(xl=7.8999, confused=7.95)  # as with untrained weights
    assert not verdict(xl=8.1, confused=8.4)


def test_who_has_learned_nothing_does_not_extrapolate() -> None:
    def verdict(within: float) -> bool:
        def answers(symbols: float) -> list[dict[str, list[float]]]:
            return [{"whole": [within] * 6, "symbols": [symbols] * 6}]

        right = {"sinusoidal": answers(0.1), "relative": answers(0.2), "relative, memory": answers(0.2)}
        results = {
            **dict.fromkeys(("steps", "lanes", "segment", "tested"), 1),
            "trained": algorithms.TRAINED_LENGTH,
            "lengths": algorithms.LENGTHS,
            "parameters": dict.fromkeys(right, 1),
            "right": {"copy": right},
        }
        return shown(algorithms.tell(results), "extrapolate farther")

    assert verdict(within=0.9)
    assert not verdict(within=0.0)
