"""Relative effective context length (RECL): how much context each model of a group uses.

The gain from a longer context cannot be compared directly between a good model and a bad one, which has more to gain.
So all models of a group are measured against the best of them. With l_i(c, t) the nats of model i at position t given
the last c tokens:

    b(c, t)    = min_i l_i(c, t)
    f_i(c, c') = mean of min(b(c, t), l_i(c', t)) over the share r of positions where b(c, t) is highest
    g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

From c, try c' = c + Δ. If g_i < 0.01, the answer for model i is c; else go on from c'.
Letters: P positions, B of them read side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from segue.config import Reading, Settings
from segue.errors import InputError
from segue.nn.language import LanguageModel
from segue.progress import Report, silent
from segue.text.corpus import Stream

GAIN = 0.01
"""The relative gain in perplexity that counts."""

BATCH_TOKENS = 2**14
"""Tokens of one batch."""

Losses = Callable[[str, int], Tensor]
"""l_i(c, ·): from a model's name and a context to the nats (P,) of all positions."""


class Plan(Settings):
    """The contexts to try, and the positions to try them at."""

    step: PositiveInt = 100  # Δ, and the first context; the paper does not say, and this fits its table
    longest: PositiveInt = 1000  # context that is tried
    positions: PositiveInt = 2000
    shares: tuple[float, ...] = (0.1, 0.5, 1.0)  # r
    seed: NonNegativeInt = 0  # of the positions
    gain: float = Field(GAIN, gt=0)

    @property
    def contexts(self) -> range:
        """All contexts that may be tried, from the shortest to the longest."""
        return range(self.step, self.longest + 1, self.step)

    @model_validator(mode="after")
    def _something_can_be_tried(self) -> "Plan":
        if self.longest < 2 * self.step:
            raise ValueError(
                f"contexts of {self.step} and {2 * self.step} are compared first; longest is {self.longest}"
            )
        if not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"shares should lie between 0 and 1; found {list(self.shares)}")
        return self


@dataclass(frozen=True)
class Lengths:
    """The result."""

    lengths: dict[str, tuple[int, ...]]  # of each model, for each share
    curves: dict[str, dict[int, float]]  # of each model, mean nats by context
    unbounded: tuple[str, ...]  # models that still gain at the longest context
    positions: int


@dataclass(frozen=True, eq=False)
class Member:
    """A model of the group, and how it is read."""

    model: LanguageModel
    reading: Reading

    @property
    def window(self) -> int | None:
        """The longest context without memory: one segment."""
        return None if self.reading.reach.memory else self.reading.segment


def relative_lengths(
    group: Mapping[str, Member], stream: Stream, plan: Plan, report: Report = silent
) -> Lengths:
    """The RECL of every model of the group on a text."""
    places = choose_places(stream, plan)
    curves: dict[str, dict[int, float]] = {name: {} for name in group}

    @cache
    def losses(name: str, context: int) -> Tensor:
        member = group[name]
        limit = context if member.window is None else min(context, member.window)
        nats = context_losses(member, stream, places, limit, told=f"{name} with {context:,}", report=report)
        curves[name][context] = float(nats.mean())
        return nats

    lengths_of, unbounded = {}, []
    for name, member in group.items():
        lengths = [
            effective_length(losses, list(group), name, share, plan.contexts, plan.gain)
            for share in plan.shares
        ]
        if max(lengths) == plan.contexts[-1]:
            unbounded.append(name)
        lengths_of[name] = tuple(min(length, member.window or length) for length in lengths)
    return Lengths(lengths_of, curves, tuple(unbounded), len(places))


def effective_length(
    losses: Losses,
    names: Sequence[str],
    name: str,
    share: float,
    contexts: Sequence[int],
    gain: float = GAIN,
) -> int:
    """The search for one model and one share of the positions that are hardest for the group `names`."""
    for context, longer in pairwise(contexts):
        best = torch.stack([losses(other, context) for other in names]).amin(dim=0)
        hardest = best.topk(max(1, round(share * len(best)))).indices
        before = torch.minimum(best, losses(name, context))[hardest].mean().exp()  # f_i(c, c)
        after = torch.minimum(best, losses(name, longer))[hardest].mean().exp()  # f_i(c, c')
        if float((before - after) / before) < gain:
            return context
    return contexts[-1]


def choose_places(stream: Stream, plan: Plan) -> Tensor:
    """(P,) Positions with the longest context before them in their own document, drawn without repetition."""
    ends = np.append(stream.starts[1:], len(stream.ids))
    targets = np.maximum(0, ends - stream.starts - plan.longest)
    total = int(targets.sum())
    if not total:
        raise InputError(
            f"the text is shorter than the context: its longest document has {int((ends - stream.starts).max()):,} "
            f"tokens, and {plan.longest:,} of context need one more; give more text, or a shorter --longest"
        )
    draw = np.random.default_rng(plan.seed)
    chosen = np.sort(draw.choice(total, size=min(plan.positions, total), replace=False))
    before = np.cumsum(targets)
    document = np.searchsorted(before, chosen, side="right")
    inside = chosen - (before - targets)[document]
    return torch.from_numpy(stream.starts[document] + plan.longest + inside)


@torch.no_grad()
def context_losses(
    member: Member,
    stream: Stream,
    places: Tensor,
    context: int,
    *,
    told: str = "",
    report: Report = silent,
) -> Tensor:
    """(P,) The cross-entropy of the tokens at the places, each given exactly the `context` tokens before it."""
    model, reach = member.model.frozen(), member.reading.reach
    nats = []
    for some in places.split(max(1, BATCH_TOKENS // context)):
        columns = some[:, None] - context + torch.arange(context + 1)
        tokens = torch.from_numpy(stream.ids[columns.numpy()].astype(np.int64)).to(
            model.device, non_blocking=True
        )
        memory = model.start(lanes=len(some), reach=reach)
        for piece in _ending_whole(tokens[:, :-1], member.reading.segment):
            hidden, memory = model(piece, memory)
        nats.append(model.nats(hidden[:, -1], tokens[:, -1]).double().cpu())
        report(told, sum(map(len, nats)), len(places))
    return torch.cat(nats)


def _ending_whole(tokens: Tensor, segment: int) -> Sequence[Tensor]:
    """Cut into segments, the last of them full, so that the last token has as much context as possible."""
    first = tokens.size(1) % segment
    whole = tokens[:, first:].split(segment, dim=1) if tokens.size(1) > first else ()
    return (tokens[:, :first], *whole) if first else whole
