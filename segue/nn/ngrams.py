"""N-gram embeddings: vectors of the last 2 … n tokens together, found by a hash, added to the input of every layer.

A look-up multiplies nothing, so these parameters cost little time. Several n-grams may share a row of a table. Memory
carries the last n - 1 tokens of each lane, whatever its reach, so that a segment boundary changes nothing.

Letters: B lanes, T tokens in the segment, n tokens of the longest n-gram, C width, N layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import XLConfig
from segue.nn.layout import SegmentLayout, positions
from segue.nn.memory import Memory, last, newest_before_padding, rows_at

FACTOR = 1_000_003
"""Of the hash, a prime: keys differ in their high bits, which are folded onto the low ones."""


class NGrams(nn.Module):
    """A table for each length of n-grams, from 2 on.

    Most n-grams are rare, and Adam moves a row far whenever its n-gram occurs. Times sqrt(C), as tokens are, they
    would be learned by heart (docs/LOG.md), so their factor is smaller.
    """

    def __init__(self, config: XLConfig) -> None:
        super().__init__()
        self.config = config
        lengths = range(2, config.ngrams + 1)
        self.tables = nn.ParameterList(torch.empty(config.ngram_rows, config.width) for _ in lengths)

    def forward(self, tokens: Tensor, memory: Memory, layout: SegmentLayout) -> Tensor:
        """(T, B, C) The sum of the vectors of all n-grams that end with each token (B, T), times C^(1/4) / sqrt(N)."""
        contexts = self.contexts(tokens, memory, layout)
        keys, found = contexts[0], []
        for table, earlier in zip(self.tables, contexts[1:], strict=True):
            keys = keys * FACTOR + earlier  # 64-bit integers wrap around alike on every device
            rows = (keys ^ (keys >> 15)) % len(table)
            found.append(F.embedding(rows.T, table))
        scale: float = self.config.width**0.25 / self.config.layers**0.5
        return torch.stack(found).sum(dim=0) * scale

    def contexts(self, tokens: Tensor, memory: Memory, layout: SegmentLayout) -> list[Tensor]:
        """Tensors (B, T), n of them: each token, the one before it, and so on; V where its document has none."""
        assert memory.recent is not None
        before, size = self.config.ngrams - 1, layout.size
        joined = torch.cat([memory.recent, tokens.long()], dim=1)
        places = positions(layout, memory.seen).to(tokens.device, non_blocking=True)
        earlier = [
            joined[:, before - back : before - back + size].masked_fill(places < back, self.config.vocab)
            for back in range(1, before + 1)
        ]
        return [tokens.long(), *earlier]


def no_tokens(lanes: int, ngrams: int, device: torch.device) -> Tensor | None:
    """(B, n - 1) The last tokens of lanes that have read none; None for a model without n-grams."""
    return torch.zeros(lanes, ngrams - 1, dtype=torch.int64, device=device) if ngrams > 1 else None


def recent_after(recent: Tensor | None, tokens: Tensor, layout: SegmentLayout) -> Tensor | None:
    """(B, n - 1) The last tokens of each lane after one more segment (B, T). Its padding is left out."""
    if recent is None:
        return None
    joined, count = torch.cat([recent, tokens.long()], dim=1), recent.size(1)
    if layout.lengths is None:
        return last(joined, count).contiguous()
    return rows_at(joined, newest_before_padding(count + layout.counts, count))
