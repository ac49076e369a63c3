"""Compressors measured on the text that models are scored on, in bits per byte.

zstd comes from the package zstandard, which is optional; this is the one file that imports it.
"""

import lzma
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from segue.lab.experiment import Results, Setting
from segue.text.corpus import Stream

SIZES = {True: (50_000, 100_000), False: (5_000_000, 16_000_000)}
"""Quick or not: the most tokens of the test split that are compressed, and of the training text before them."""


def xz(text: bytes) -> int:
    """The bytes of `xz -9e`."""
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def _zstd() -> Callable[[bytes], int] | None:
    """The bytes of `zstd -19 --long=27`; None if the package is not installed."""
    try:
        library: Any = import_module("zstandard")
    except ImportError:
        return None
    settings = library.ZstdCompressionParameters.from_level(19, window_log=27)
    return lambda text: len(library.ZstdCompressor(compression_params=settings).compress(text))


def compressors() -> dict[str, Callable[[bytes], int]]:
    """By name, the size to which each compresses a text."""
    zstd = _zstd()
    return {"xz -9e": xz} | ({} if zstd is None else {"zstd -19 --long=27": zstd})


def measured_compressors(setting: Setting) -> list[Results]:
    """Bits per byte of the test split by itself, and behind the end of the training text.

    The second is the additional size of both together: what a compressor gains from text that models were trained on.
    """
    tested, before = SIZES[setting.quick]
    text = _text(setting.stream("test"), slice(tested))
    context = _text(setting.stream("train"), slice(-before, None))
    rows = []
    known = compressors()
    for number, (name, size) in enumerate(known.items()):
        setting.report("compressors", number, len(known))
        rows.append(
            {
                "name": name,
                "data": setting.corpus.header.source,
                "alone": 8 * size(text) / len(text),
                "after training text": 8 * (size(context + text) - size(context)) / len(text),
                "bytes": len(text),
                "context": len(context),
            }
        )
    return rows


def _text(stream: Stream, part: slice) -> bytes:
    return stream.tokenizer.decode(np.asarray(stream.ids[part]))
