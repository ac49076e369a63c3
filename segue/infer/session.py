"""A session: a bundle and what it remembers, fed as text arrives."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segue.checkpoint import Bundle
from segue.config import KVCache, Reach, Reading
from segue.errors import InputError
from segue.infer.reader import Reader, start_reader
from segue.infer.sample import Sampling, choose, choose_each
from segue.nn.xl import TransformerWithMemory
from segue.text.tokenizer import Decoder, Tokenizer

DECODER_CONTEXT = 8
"""Newest token ids that a decoder needs: as many as an incomplete character can have, and some more."""


@dataclass(eq=False)
class Session:
    """An unbounded stream at constant memory. For one thread at a time; forks may be used by others."""

    tokenizer: Tokenizer
    reader: Reader
    decode: Decoder  # of the whole stream: a character may begin in one call and end in another

    def feed(self, text: str | bytes) -> list[float]:
        """Read text. Returns the cross-entropy, in nats, of every token but the stream's first.

        With a byte tokenizer, text may be cut anywhere, inside characters too. Other tokenizers need whole characters,
        and make other tokens of "ab" and "c" than of "abc". A character that generation left incomplete is dropped.
        """
        ids = self.tokenizer.encode(_bytes(text))
        return self.read(ids) if len(ids) else []

    def read(self, ids: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> list[float]:
        """The same for one or more token ids."""
        tokens = torch.as_tensor(ids)
        if tokens.dim() != 1 or tokens.is_floating_point():
            raise InputError(
                f"read wants a row of token ids; found {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        self.reader, nats = self.reader.read(tokens.long()[None])
        if len(ids) > DECODER_CONTEXT:
            self.decode = self.tokenizer.stream()
        for number in ids[-DECODER_CONTEXT:]:
            self.decode(int(number))
        scores: list[float] = nats[0].tolist()
        return scores

    def logprobs(self) -> Tensor:
        """(V,) Log-probabilities of the next token."""
        return self.reader.logprobs()[0]

    def generate(
        self,
        count: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> str:
        """Generate up to `count` tokens of text, which the session has then read too.

        An incomplete character at the end is held back for the next call.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        return "".join(self.stream(count, sampling, seed=seed, stop=stop))

    def stream(
        self, count: int | None, sampling: Sampling, *, seed: int | None = None, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """The same piece by piece, as soon as characters are complete; without a count, for ever."""
        generator, held, done = _generator(self.reader, seed), _Held(stop), 0
        while count is None or done < count:
            token = choose(self.reader.logprobs(), sampling, generator)
            self.reader = self.reader.advance(token)
            yield from held.add(self.decode(int(token)))
            if held.stopped:
                return
            done += 1
        yield held.rest

    def fork(self) -> "Session":
        """A copy with the same memory; both may continue differently."""
        return Session(self.tokenizer, self.reader, copy(self.decode))


def start_session(
    bundle: Bundle,
    *,
    memory: int | None = None,
    reach: Reach | None = None,
    int8: bool = False,
    kv_cache: KVCache = "exact",
) -> Session:
    """A session that has read nothing, with the bundle's own memory length or another."""
    if bundle.tokenizer is None:
        raise InputError("this bundle has no tokenizer, so it cannot read text; import it with --vocab")
    default = bundle.reading
    reading = (
        default.changed(memory=memory) if reach is None else Reading(segment=default.segment, reach=reach)
    )
    if isinstance(bundle.model, TransformerWithMemory):
        reading = reading.without_seams()
    engine = bundle.model.frozen(int8=int8, kv_cache=kv_cache)
    return Session(bundle.tokenizer, start_reader(engine, reading), bundle.tokenizer.stream())


def generate_samples(
    session: Session,
    samples: int,
    count: int,
    sampling: Sampling,
    seed: int | None,
    *,
    stop: Sequence[str] = (),
) -> list[str]:
    """Several continuations, generated as one batch: the first as by `generate` with this seed, the second as with the
    next seed, and so on. The session itself does not change.
    """
    reader, lanes = session.reader.select([0] * samples), range(samples)
    generators = [_generator(reader, None if seed is None else seed + lane) for lane in lanes]
    decoders, held = [copy(session.decode) for _ in lanes], [_Held(stop) for _ in lanes]
    texts = [""] * samples
    for _ in range(count):
        tokens = choose_each(reader.logprobs(), sampling, generators)
        reader = reader.advance(tokens)
        numbers = tokens.tolist()
        for lane in (lane for lane in lanes if not held[lane].stopped):
            texts[lane] += "".join(held[lane].add(decoders[lane](numbers[lane])))
        if all(text.stopped for text in held):
            break
    return [texts[lane] + ("" if held[lane].stopped else held[lane].rest) for lane in lanes]


def _bytes(text: str | bytes) -> bytes:
    """The text as UTF-8; bytes are left as they are."""
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    if not isinstance(text, str):
        raise InputError(f"feed wants str or bytes; found {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"this text is not Unicode: {text[error.start]!r} at {error.start} is half of a surrogate pair; "
            "give bytes, or text that was decoded with errors='replace'"
        ) from None


def _generator(reader: Reader, seed: int | None) -> torch.Generator:
    generator = torch.Generator(device=reader.engine.device)
    if seed is None:
        generator.seed()
        return generator
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise InputError(f"a seed should lie between -2^63 and 2^64 - 1; found {seed}")
    return generator.manual_seed(seed)


class _Held:
    """Holds text back while it may be the beginning of a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        texts = [stop] if isinstance(stop, str) else stop
        self._stop, self.rest, self.stopped = [text for text in texts if text], "", False

    def add(self, text: str) -> Iterator[str]:
        self.rest += text
        ends = [at for at in (self.rest.find(mark) for mark in self._stop) if at >= 0]
        if ends:
            self.stopped = True
            yield self.rest[: min(ends)]
            return
        held = max((_overlap(self.rest, mark) for mark in self._stop), default=0)
        ready, self.rest = self.rest[: len(self.rest) - held], self.rest[len(self.rest) - held :]
        if ready:
            yield ready


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that is a beginning of `mark`."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)
