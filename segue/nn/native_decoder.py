"""A decoder's step and the likeliest tokens behind it by native code: `native/decoder.cpp` and `native/likeliest.cpp`.

The structures here are those of the C++ sources, field by field. They hold addresses; whoever makes them keeps the
tensors alive.

Letters: N layers, B lanes, L keys of a lane's past, H heads, D head width, C width, V vocabulary, K tokens.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from segue import native
from segue.nn.block import Block
from segue.nn.frozen_layer import FloatLinear
from segue.nn.frozen_layer import Norm as FrozenNorm
from segue.nn.kv_rows import KVRows
from segue.nn.native_structures import (
    ADDRESS,
    SIZE,
    WORK_OF_A_THREAD,
    Norm,
    Weights,
    address,
    matrix,
    norm,
    structure,
)
from segue.nn.packed_source import PackedSource

DECODES = {torch.float32: "segue_decode_float", torch.float64: "segue_decode_double"}
SEARCHES = {torch.float32: "segue_likeliest_float", torch.float64: "segue_likeliest_double"}

LINEARS = ("query", "key_value", "out", "cross_query", "cross_out", "inner", "outer")
NORMS = ("attention_norm", "cross_norm", "feed_forward_norm")

_Layer = structure("DecoderLayer", **dict.fromkeys(LINEARS, Weights), **dict.fromkeys(NORMS, Norm))
_Decoder = structure(
    "Decoder",
    layers=ADDRESS,
    **dict.fromkeys(("count", "width", "heads", "head_width", "feedforward", "pre"), SIZE),
    scale=ctypes.c_double,
    last_norm=Norm,
)
_SourceKeys = structure("SourceKeys", keys=ADDRESS, values=ADDRESS, stride=SIZE)
_Targets = structure(
    "Targets",
    **dict.fromkeys(("hidden", "rows", "table", "sources", "firsts", "counts"), ADDRESS),
    **dict.fromkeys(("lanes", "keys", "capacity", "longest"), SIZE),
)
_Asked = structure(
    "Asked",
    table=Weights,
    **dict.fromkeys(("hidden", "logprobs", "tokens"), ADDRESS),
    **dict.fromkeys(("lanes", "count", "never"), SIZE),
)


class NativeDecoder:
    """The layers of a decoder as native code sees them. Many threads may call it."""

    def __init__(self, blocks: Sequence[Block], last_norm: nn.LayerNorm | None) -> None:
        linears = [[_linear(one) for one in _linears(block)] for block in blocks]
        norms = [[_norm(getattr(block, name)) for name in NORMS] for block in blocks]
        last = None if last_norm is None else _norm(last_norm)
        self._kept = (linears, norms, last)  # alive as long as their addresses
        self._layers: Any = (_Layer * len(blocks))(
            *(
                _Layer(*map(matrix, some), *map(norm, others))
                for some, others in zip(linears, norms, strict=True)
            )
        )
        attention, out, inner = blocks[0].attention, linears[0][2].weight, linears[0][5].weight
        self._decoder = _Decoder(
            ctypes.addressof(self._layers),
            *(len(blocks), len(out), attention.heads, out.size(1) // attention.heads),
            *(len(inner), blocks[0].pre, attention.scale),
            Norm() if last is None else norm(last),
        )

    def __call__(self, hidden: Tensor, past: KVRows, source: PackedSource, sentences: Tensor) -> Tensor:
        """The stack's output (B, C) for one token of each lane; its keys and values go to the table's last rows.

        `sentences` (B,) tells which source each lane has.
        """
        library, storage = native.library(), past.buffer.storage
        assert library is not None
        hidden, table = hidden.clone(memory_format=torch.contiguous_format), past.table.contiguous()
        counts, row = source.counts[sentences], source.keys_values[0].stride(0)
        firsts = source.firsts[sentences] * row
        # Native code believes what it is told: a wrong shape would read beyond the tensors.
        assert hidden.shape == (past.lanes, self._decoder.width)
        assert len(sentences) == past.lanes
        assert storage.is_contiguous()
        assert all(one.dtype == hidden.dtype for one in (storage, *source.keys_values))
        sources: Any = (_SourceKeys * len(self._layers))(*map(_source_keys, source.keys_values))
        targets = _Targets(
            *(address(one) for one in (hidden, storage, table)),
            ctypes.addressof(sources),
            *(address(one) for one in (firsts, counts)),
            *(*table.shape, past.buffer.capacity, int(counts.max())),
        )
        call = getattr(library, DECODES[hidden.dtype])
        if call(ctypes.byref(self._decoder), ctypes.byref(targets), self._threads(past.lanes)):
            raise MemoryError("not enough memory to read a token")
        return hidden

    def _threads(self, lanes: int) -> int:
        """As many as torch uses, or fewer where a thread would wait for the others longer than it works."""
        decoder = self._decoder
        weights = decoder.width * (6 * decoder.heads * decoder.head_width + 2 * decoder.feedforward)
        return max(1, min(torch.get_num_threads(), int(lanes * weights) // WORK_OF_A_THREAD))


def decodes(weights: Sequence[Tensor]) -> bool:
    """Whether native code can read with these weights: on a CPU, all in float32 or all in float64."""
    return native.library() is not None and all(
        type(one) in (Tensor, nn.Parameter)
        and one.device.type == "cpu"
        and one.dtype == weights[0].dtype
        and one.dtype in DECODES
        and one.is_contiguous()
        for one in weights
    )


def likeliest(
    hidden: Tensor, table: Tensor, bias: Tensor | None, count: int, never: int
) -> tuple[Tensor, Tensor]:
    """(B, K) The largest log-softmax(hidden table' + bias), the largest first, and their tokens.

    The token `never` is left out. Where there are fewer than K tokens, the rest is `never`, with -inf.
    """
    library, hidden = native.library(), hidden.contiguous()
    assert library is not None
    assert hidden.size(1) == table.size(1)
    assert decodes([hidden, table] if bias is None else [hidden, table, bias])
    logprobs, tokens = (
        hidden.new_empty(len(hidden), count),
        torch.empty(len(hidden), count, dtype=torch.int64),
    )
    asked = _Asked(
        matrix(FloatLinear(table, bias)),
        *(address(one) for one in (hidden, logprobs, tokens)),
        *(len(hidden), count, never),
    )
    threads = max(1, min(torch.get_num_threads(), hidden.numel() * len(table) // WORK_OF_A_THREAD))
    if getattr(library, SEARCHES[hidden.dtype])(ctypes.byref(asked), threads):
        raise MemoryError("not enough memory for the likeliest tokens")
    return logprobs, tokens


def _linears(block: Block) -> list[nn.Linear]:
    own, cross, fed = block.attention, block.cross, block.feed_forward
    return [own.query, own.key_value, own.out, cross.query, cross.out, fed.inner, fed.outer]


def _linear(layer: nn.Linear) -> FloatLinear:
    return FloatLinear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())


def _norm(layer: nn.LayerNorm) -> FrozenNorm:
    return FrozenNorm(layer.weight.detach(), layer.bias.detach(), layer.eps)


def _source_keys(keys_values: Tensor) -> ctypes.Structure:
    """Of rows (N, 2, H, D)."""
    assert keys_values.is_contiguous()
    return _SourceKeys(address(keys_values[:, 0]), address(keys_values[:, 1]), keys_values.stride(0))
