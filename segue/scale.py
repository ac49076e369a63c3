"""What a run takes on several ranks, on paper: memory of each, what it sends in a step, how long it computes.

Letters: N ranks, P parameters, B lanes, M states in memory.
"""

from dataclasses import dataclass

from segue.config import XLConfig
from segue.footprint import FLOAT, kept_bytes, logits_bytes, parameters, training_flops
from segue.nn.deferred import blank
from segue.nn.xl import TransformerXL
from segue.recipe import Recipe


@dataclass(frozen=True)
class Machines:
    """What a rank is assumed to reach."""

    flops: float = 1e14  # a second, in products of matrices
    bandwidth: float = 12.5e9  # bytes a second that it sends and receives; a network of 100 Gbit/s


@dataclass(frozen=True)
class RankShare:
    """One of N ranks."""

    lanes: int
    state_bytes: int  # weights, gradients and Adam's two moments
    passing_bytes: int  # weights of others that are here for a while, with their gradients
    carried_bytes: int  # what lanes remember
    step_bytes: int  # what one step keeps for its backward pass
    sent_in_a_step: int  # bytes
    seconds_computing: float
    seconds_sending: float

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.passing_bytes + self.carried_bytes + self.step_bytes

    @property
    def least_efficiency(self) -> float:
        """The share of time that it computes, if it does nothing else while it sends."""
        return self.seconds_computing / (self.seconds_computing + self.seconds_sending)

    @property
    def most_efficiency(self) -> float:
        """The same if all that the backward pass can hide, two thirds of the computing, hides sending."""
        forward, backward = self.seconds_computing / 3, 2 * self.seconds_computing / 3
        return self.seconds_computing / (forward + max(backward, self.seconds_sending))


def rank_share(recipe: Recipe, ranks: int, machines: Machines, *, sharded: bool) -> RankShare:
    """What each rank holds and sends: all of the weights (DDP), or a part of each (FSDP2), in float32."""
    model, train = recipe.model, recipe.train
    assert isinstance(model, XLConfig)
    lanes, whole = train.lanes // ranks, FLOAT * parameters(model)
    at_once = train.model_copy(update={"lanes": lanes // train.accumulate})
    ring = (ranks - 1) / ranks  # what passes through each rank when all share something, of its size
    if sharded:
        root, block = _weights(recipe)
        held, passing = (
            4 * whole // ranks,
            2 * FLOAT * (root + 2 * block),
        )  # with gradients; the next is fetched
        # a block is gathered forward and again backward; the root once; gradients are added up in parts
        sent = ring * train.accumulate * (2 * whole - FLOAT * root + whole)
    else:
        held, passing = 4 * whole, 0
        sent = ring * 2 * whole
    return RankShare(
        lanes=lanes,
        state_bytes=held,
        passing_bytes=passing if ranks > 1 else 0,
        carried_bytes=lanes * train.memory * model.layers * model.width * FLOAT,
        step_bytes=kept_bytes(model, at_once) + logits_bytes(model, at_once),
        sent_in_a_step=round(sent),
        seconds_computing=training_flops(model, train) / ranks / machines.flops,
        seconds_sending=sent / machines.bandwidth,
    )


def _weights(recipe: Recipe) -> tuple[int, int]:
    """Parameters outside the blocks, and of one block."""
    assert isinstance(recipe.model, XLConfig)
    with blank():
        model = TransformerXL(recipe.model.model_copy(update={"layers": 1}))
    block = sum(weight.numel() for weight in model.blocks.parameters())
    return parameters(recipe.model) - recipe.model.layers * block, block
