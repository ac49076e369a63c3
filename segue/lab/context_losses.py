"""Losses by context length: the same positions, each read anew with only the last c tokens before it.

Positions lie in blocks of consecutive ones. A window of c tokens is read from an empty state, and its last c / 8
targets are scored (one, if c < 16), so that each is predicted from the last c tokens, or up to an eighth fewer. That is
as good as one window for each position on a ladder whose steps are larger, and costs eight tokens for a position
whatever the context. Letters: P positions, n of them in a block, c context, k targets of a window, B windows at once.
"""

import numpy as np
import torch
from torch import Tensor

from segue.config import ConvolutionalConfig, Reach, XLConfig
from segue.errors import InputError
from segue.nn.language import LanguageModel
from segue.progress import Report, silent
from segue.recipe import Recipe
from segue.text.corpus import Stream

WINDOW_SHARE = 8
"""A window's context over the targets that are scored in it."""

BATCH_TOKENS = 2**13
"""Tokens of one batch."""


def ladder(longest: int) -> tuple[int, ...]:
    """Context lengths from 8, two for each doubling: 8, 12, 16, 24, 32 …"""
    rungs = (length for power in range(3, longest.bit_length()) for length in (2**power, 3 * 2**power // 2))
    return tuple(length for length in rungs if length <= longest)


def choose_blocks(stream: Stream, blocks: int, size: int, longest: int, seed: int) -> Tensor:
    """(blocks, n) Positions with the longest context before them in their own document; blocks do not overlap."""
    ends = np.append(stream.starts[1:], len(stream.ids))
    places = np.concatenate(
        [
            np.arange(start + longest, end - size + 1, size)
            for start, end in zip(stream.starts, ends, strict=True)
        ]
    )
    if len(places) < 2:
        raise InputError(
            f"the text is too short: its longest document has {int((ends - stream.starts).max()):,} tokens, and "
            f"two blocks of {size} with {longest:,} tokens of context are needed; give more text"
        )
    draw = np.random.default_rng(seed)
    chosen = np.sort(draw.choice(places, size=min(blocks, len(places)), replace=False))
    return torch.from_numpy(chosen)[:, None] + torch.arange(size)


def ceiling(recipe: Recipe) -> int | None:
    """The most tokens that a prediction can depend on: a convolution's field, an isolated segment; None: any number."""
    model, train = recipe.model, recipe.train
    if isinstance(model, ConvolutionalConfig):
        return None if model.gate == "qrnn" else model.receptive_field
    absolute = isinstance(model, XLConfig) and model.position_encoding.counts
    return train.segment if absolute and not train.memory else None


def reach_of(recipe: Recipe) -> Reach:
    """How a window is read: at once, from an empty state. Unseen distances count as the longest of training."""
    model, train = recipe.model, recipe.train
    if not isinstance(model, XLConfig):
        return Reach(memory=1)
    longest = train.segment + train.memory - 1
    relative = model.position_encoding.relative
    return Reach(memory=0, clamp=longest if relative else None, positions=train.reach.positions)


@torch.no_grad()
def context_losses(
    model: LanguageModel,
    reach: Reach,
    stream: Stream,
    blocks: Tensor,
    context: int,
    *,
    report: Report = silent,
) -> Tensor:
    """(P,) Nats of the tokens at all positions, block by block, given the last `context` tokens."""
    engine, count = model.frozen(), scored_targets(context, blocks.size(1))
    last = blocks[:, count - 1 :: count].flatten()  # the last target of each window
    nats, done = [], 0
    for some in last.split(max(1, BATCH_TOKENS // context)):
        tokens = _windows(stream, some, context)
        hidden, _ = engine(tokens[:, :-1], engine.start(lanes=len(some), reach=reach))
        nats.append(engine.nats(hidden[:, -count:], tokens[:, -count:]).double().flatten())
        done += len(some) * count
        report(f"reading {context} tokens of context", done, blocks.numel())
    return torch.cat(nats)


@torch.no_grad()
def control_losses(
    model: LanguageModel,
    reach: Reach,
    stream: Stream,
    blocks: Tensor,
    context: int,
    *,
    own: int,
    seed: int = 0,
    report: Report = silent,
) -> Tensor:
    """(P,) The same, but only the last `own` tokens are those before the target; text from elsewhere precedes them.

    The windows are those of a context of `own` tokens. The foreign text is read once for each block and forked.
    """
    if context <= own:
        return context_losses(model, reach, stream, blocks, context, report=report)
    engine, count = model.frozen(), scored_targets(own, blocks.size(1))
    last = blocks[:, count - 1 :: count]  # (blocks, windows of a block)
    draw = np.random.default_rng([seed, context])
    elsewhere = torch.from_numpy(draw.integers(context - own, len(stream.ids), size=len(blocks)))
    start = engine.start(reach=reach.model_copy(update={"memory": context}))
    nats, done, together = [], 0, max(1, 8 * BATCH_TOKENS // (context * last.size(1)))
    for some, foreign in zip(last.split(together), elsewhere.split(together), strict=True):
        before = _windows(stream, foreign, context - own)[:, :-1]
        _, memory = engine(before, start.select([0] * len(some)))
        memory = memory.select(torch.arange(len(some)).repeat_interleave(last.size(1)))
        tokens = _windows(stream, some.flatten(), own)
        hidden, _ = engine(tokens[:, :-1], memory)
        nats.append(engine.nats(hidden[:, -count:], tokens[:, -count:]).double().flatten())
        done += some.numel() * count
        report(f"reading {context} tokens, {own} of them its own", done, blocks.numel())
    return torch.cat(nats)


def scored_targets(context: int, size: int) -> int:
    """k: the largest power of two that is at most an eighth of the context, and that divides a block of `size`."""
    count = 1
    while 2 * WINDOW_SHARE * count <= context and size % (2 * count) == 0:
        count *= 2
    return count


def _windows(stream: Stream, last: Tensor, context: int) -> Tensor:
    """(B, c + 1) The tokens up to each of the positions, themselves included."""
    columns = last[:, None] - context + torch.arange(context + 1)
    return torch.from_numpy(stream.ids[columns.numpy()].astype(np.int64))
