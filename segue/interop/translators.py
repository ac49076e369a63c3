"""What importers of encoder-decoders share: weights under our names, and symbols in our order.

A model here has the ids of its text first, then its start and its end. Others have these anywhere, so the rows of
tables are put in order: the same model with other numbers for its symbols.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segue.config import Seq2SeqConfig
from segue.errors import SourceError
from segue.interop.sentencepiece import Pieces, piece_tokenizer
from segue.nn.fit import check_fit, check_size, too_large
from segue.nn.positions import interleaved_sinusoids, sinusoids
from segue.nn.seq2seq import Seq2Seq
from segue.text.parsing import parse_json
from segue.text.tokenizer import TextTokenizer

IMPOSSIBLE = -1e9
"""The output bias of a symbol that is never written."""


@dataclass(frozen=True)
class Symbols:
    """One vocabulary of theirs, in the order of their ids, and what its special ids are."""

    texts: Sequence[str]
    end: int
    unknown: int | None = None
    start: int | None = None  # None: decoding starts from a vector of zeros
    added: tuple[str, ...] = ()  # pieces of sentencepiece that the vocabulary lacks: unknown to the model

    def __post_init__(self) -> None:
        ids = [number for number in (self.start, self.end, self.unknown) if number is not None]
        if not all(0 <= number < len(self.texts) for number in ids) or len(set(ids)) < len(ids):
            raise SourceError(
                f"start, end and unknown should be different ids of {len(self.texts):,} symbols; found {ids}"
            )

    @property
    def text_ids(self) -> list[int]:
        return [number for number in range(len(self.texts)) if number not in (self.start, self.end)]

    @property
    def ours(self) -> list[str]:
        """The symbols of text in the order of our ids."""
        return [*(self.texts[number] for number in self.text_ids), *self.added]

    @property
    def size(self) -> int:
        return len(self.ours) + 2

    def rows(self, table: Tensor) -> Tensor:
        """Their table (V, …) in our order; an added piece is the unknown symbol again."""
        check_rows(table, len(self.texts))
        order = [*self.text_ids, *[self.unknown or 0] * len(self.added)]
        start = torch.zeros_like(table[:1]) if self.start is None else table[self.start][None]
        return torch.cat([table[order], start, table[self.end][None]])

    def bias(self, bias: Tensor) -> Tensor:
        """Their output bias (V,) in our order."""
        ordered = self.rows(bias)
        first = len(self.ours) - len(self.added)
        ordered[first : len(self.ours) + (self.start is None)] = IMPOSSIBLE
        return ordered

    def tokenizer(self, pieces: Pieces) -> TextTokenizer:
        if self.unknown is None:
            raise SourceError("the vocabulary has no symbol for what is unknown, and sentencepiece needs one")
        return piece_tokenizer(self.ours, self.ours.index(self.texts[self.unknown]), pieces)


def check_rows(table: Tensor, count: int) -> None:
    if not table.dim() or len(table) != count:
        raise SourceError(f"a table has shape {tuple(table.shape)}, and the vocabulary {count:,} symbols")


Part = Mapping[str, Tensor]
"""A weight and a bias."""


class Parts:
    """Their weights, taken by name; what nobody took is told."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        self.weights, self.name = weights, name
        self.taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.weights

    def __getitem__(self, key: str) -> Tensor:
        if key not in self.weights:
            raise SourceError(f"{self.name} lacks the tensor {key}; does its config belong to it?")
        self.taken.add(key)
        return self.weights[key]

    def get(self, key: str) -> Tensor | None:
        """A tensor that may be absent."""
        return self[key] if key in self.weights else None

    def part(self, key: str, weight: str = "weight", bias: str = "bias") -> Part:
        return {"weight": self[f"{key}{weight}"], "bias": self[f"{key}{bias}"]}

    def check_all_taken(self) -> None:
        rest = sorted(self.weights.keys() - self.taken)
        if rest:
            more = " and more" if len(rest) > 3 else ""
            raise SourceError(
                f"{self.name} also holds {', '.join(rest[:3])}{more}; is it a plain Transformer?"
            )


def attention(ours: str, query: Part, key_value: Sequence[Part], out: Part) -> dict[str, Tensor]:
    """One attention under our names."""
    joined = {kind: torch.cat([part[kind] for part in key_value]) for kind in ("weight", "bias")}
    return named({f"{ours}.query": query, f"{ours}.key_value": joined, f"{ours}.out": out})


def split(fused: Part, count: int) -> list[Part]:
    """A part of `count` equal ones that lie behind each other."""
    if any(len(tensor) % count for tensor in fused.values()):
        raise SourceError(f"a fused projection of {len(fused['bias'])} rows should be {count} equal ones")
    pieces = {kind: tensor.chunk(count) for kind, tensor in fused.items()}
    return [{kind: chunks[number] for kind, chunks in pieces.items()} for number in range(count)]


def named(parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Weights and biases under our names of their parts."""
    return {f"{ours}.{kind}": part[kind] for ours, part in parts.items() for kind in ("weight", "bias")}


@dataclass(frozen=True, eq=False)
class Tables:
    """Their embeddings and output layer, in their order."""

    target: Tensor  # (V, C)
    source: Tensor | None = None  # None: the target's
    out: Tensor | None = None  # None: the target's
    bias: Tensor | None = None  # (V,)
    scaled: bool = True  # embeddings are multiplied by sqrt(C)

    def settings(self, symbols: Symbols, source: Symbols) -> dict[str, Any]:
        """What they are, as values of a Seq2SeqConfig."""
        return {
            "vocab": symbols.size,
            "source_vocab": 0 if self.source is None else source.size,
            "width": self.target.size(-1),
            "tied": self.out is None and self.scaled,
            "output_bias": self.bias is not None or symbols.start is None or bool(symbols.added),
        }

    def weights(self, symbols: Symbols, source: Symbols) -> dict[str, Tensor]:
        """They under our names, in our order."""
        scale = 1.0 if self.scaled else self.target.size(-1) ** -0.5
        settings = self.settings(symbols, source)
        weights = {"vocabulary.tables.0": symbols.rows(self.target) * scale}
        if self.source is not None:
            weights["source_vocabulary.tables.0"] = source.rows(self.source) * scale
        if not settings["tied"]:
            weights["vocabulary.out_tables.0"] = symbols.rows(self.target if self.out is None else self.out)
        if settings["output_bias"]:
            bias = self.target.new_zeros(len(symbols.texts)) if self.bias is None else self.bias
            weights["vocabulary.biases.0"] = symbols.bias(bias.reshape(-1))
        return weights


def build(config: Seq2SeqConfig, weights: Mapping[str, Tensor], name: str) -> Seq2Seq:
    """A model with these weights, in evaluation mode. Everything is checked before it is built."""
    whole = {key: weight.contiguous() for key, weight in weights.items()}
    check_size(config, whole, name, SourceError)
    with torch.device("meta"), too_large(name, SourceError):
        model = Seq2Seq(config)
    check_fit(whole, dict(model.state_dict()), name, SourceError)
    model.load_state_dict(whole, assign=True)
    return model.eval()


def order_of(table: Tensor, name: str) -> str:
    """Which order the sinusoids in a table of positions (P, C) have; other tables are refused.

    Angles of far positions are large, and float32 rounds their sines: the first 512 rows are enough to tell.
    """
    table = table.reshape(-1, table.size(-1))[:512]
    places, width = torch.arange(len(table)), table.size(-1)
    for order, encode in (("interleaved", interleaved_sinusoids), ("concatenated", sinusoids)):
        if torch.allclose(table.float(), encode(places, width, torch.float32), atol=1e-3):
            return order
    raise SourceError(f"{name}: its positions are no sinusoids; only those are supported")


def numbered(weights: Parts, before: str, behind: str) -> int:
    """How many layers there are, counted from 0: those with a weight of this name."""
    count = 0
    while f"{before}{count}{behind}" in weights:
        count += 1
    return count


def listed_symbols(path: Path) -> list[str]:
    """The symbols of a JSON file in the order of their ids: a list of them, or an object that gives each its id."""
    try:
        value = parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror}") from None
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    if isinstance(value, dict) and all(type(number) is int for number in value.values()):
        texts = sorted(value, key=lambda text: int(value[text]))
        if [value[text] for text in texts] == list(range(len(texts))):
            return texts
    raise SourceError(f"{path} should give each symbol an id, from 0 on without gaps")
