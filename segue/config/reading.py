"""How a model reads: segment length, memory, clamp and span."""

from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from segue.config.settings import Settings

CHUNK_TOKENS = 512
"""Tokens that are read in one call where the segment length makes no difference: enough for large products."""


KVCache = Literal["exact", "float16", "int8"]
"""The precision of a KV cache: the model's own, or fewer bits."""


class Reach(Settings):
    """How far back a model reads: memory length, clamp, span. A memory carries its reach along.

    Absolute positions that restart in every segment while memory is carried are refused. `confused` allows them, for
    the experiment that shows why.
    """

    memory: NonNegativeInt  # states kept for each layer and lane
    clamp: PositiveInt | None = None  # larger distances count as this one
    span: PositiveInt | None = None  # a query sees this many keys, itself included
    pinned: NonNegativeInt = 0  # the document's first rows, kept and seen besides: global tokens
    initial: Literal["empty", "zeros"] = "empty"  # zeros: a full memory of zeros, which is attended to
    positions: Literal["onward", "restart", "confused"] = (
        "onward"  # of absolute encodings, in the next segment
    )

    @model_validator(mode="after")
    def _segments_can_be_told_apart(self) -> Self:
        if self.positions == "restart" and self.memory:
            raise ValueError(
                "absolute positions that restart in every segment while memory is carried cannot tell the "
                f"segments apart; found memory={self.memory}: use positions='onward', or memory=0"
            )
        if self.pinned and (self.initial == "zeros" or self.positions != "onward"):
            raise ValueError(
                "pinned rows are the first of a document that is read on from an empty memory; "
                f"found initial={self.initial!r}, positions={self.positions!r}"
            )
        return self

    @property
    def rows(self) -> int:
        """Rows of a full memory."""
        return self.memory + self.pinned


class Reading(Settings):
    """The default segment length and reach of a bundle."""

    segment: PositiveInt
    reach: Reach

    @property
    def seamless(self) -> bool:
        """Whether the segment length makes no difference: every token sees the same span of keys."""
        span, whole = self.reach.span, self.reach.positions == "onward"
        return span is not None and span <= self.reach.memory + 1 and whole

    @property
    def chunk(self) -> int:
        """Tokens to read in one call: a segment, or several where the segment length makes no difference."""
        return max(1, CHUNK_TOKENS // self.segment) * self.segment if self.seamless else self.segment

    def without_seams(self) -> "Reading":
        """The same with a span: every token sees equally many keys, however the stream is cut into calls."""
        memory, span = self.reach.memory, self.reach.span
        if not memory or (span is not None and span <= memory + 1):
            return self
        return self.changed(span=memory + 1)

    def overlap(self, layers: int) -> int:
        """Warm-up length: tokens to read, unscored, before a part of a stream, so that its scores equal one pass's.

        A layer looks back by its span where reading is seamless, else by memory and a segment at most.
        """
        depth = self.reach.span if self.seamless and self.reach.span else self.reach.memory + self.segment
        return -(-layers * depth // self.segment) * self.segment

    def changed(
        self,
        *,
        segment: int | None = None,
        memory: int | None = None,
        clamp: int | None = None,
        span: int | None = None,
        pinned: int | None = None,
    ) -> "Reading":
        """The same with some values changed; 0 removes a clamp, span or pinned rows.

        A new memory length removes the span; any memory turns positions that restart into ones that run on.
        """
        reach = self.reach.model_dump()
        if memory is not None:
            reach |= {
                "memory": memory,
                "span": None,
                "positions": "onward" if memory else self.reach.positions,
            }
        if clamp is not None:
            reach["clamp"] = clamp or None
        if span is not None:
            reach["span"] = span or None
        if pinned is not None:
            reach["pinned"] = pinned
        return Reading(segment=self.segment if segment is None else segment, reach=Reach(**reach))
