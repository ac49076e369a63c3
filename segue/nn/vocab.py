"""Embedding and output layer: tokens to vectors, and vectors to the cross-entropy of each token, in nats.

A plain vocabulary is an adaptive one with a single cluster. With more, the head decides between its own tokens and
the tails, and each tail between its tokens: p(token) = p(tail | head) p(token | tail).

Letters: R rows (the tokens of all lanes in a line), C width, E a cluster's width, V its tokens.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import TranslationConfig, VocabularyConfig
from segue.errors import InputError
from segue.nn.scratch import scratch
from segue.nn.smoothing import smoothed_nats
from segue.nn.tracing import tracing

LOGITS_AT_ONCE = 2**20
"""Logits that are held at once when the cross-entropy is computed: so few that they stay in a CPU's cache."""

MIN_ROWS = 64
"""Rows per product at least, even if their logits are more: for fewer, reading the table takes too long."""


class Vocabulary(nn.Module):
    """Embedding and output layer in one module, so that a tied weight is simply one weight."""

    def __init__(self, config: VocabularyConfig, *, bias: bool = True) -> None:
        super().__init__()
        self.config = config
        width = config.embedding
        sizes = [right - left for left, right in pairwise(config.edges)]
        widths = [width // config.divisor**cluster for cluster in range(config.clusters)]
        if config.divisor == 1:
            sizes, widths = [config.vocab], [width]
        tables = [torch.empty(size, wide) for size, wide in zip(sizes, widths, strict=True)]
        self.tables = nn.ParameterList(tables)
        self.biases = nn.ParameterList(torch.empty(size) for size in sizes if bias)
        self.out_tables = nn.ParameterList([] if config.tied else [torch.empty(t.shape) for t in tables])
        if config.clusters > 1:
            self.cluster_table = nn.Parameter(torch.empty(config.clusters - 1, width))
            self.cluster_bias = nn.Parameter(torch.empty(config.clusters - 1))
        self.projections = nn.ParameterDict(  # those of the embedding; with divisor 1, all clusters share "0"
            {
                str(cluster): torch.empty(config.width, wide)
                for cluster, wide in enumerate(widths)
                if config.projected(cluster)
            }
        )
        self.out_projections = nn.ParameterDict(
            {
                str(cluster): torch.empty(config.width, widths[min(cluster, len(widths) - 1)])
                for cluster in range(config.clusters)
                if config.projected(cluster) and not (cluster and config.tied_projections)
            }
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """(…, C) The vectors of tokens, times sqrt(C)."""
        try:
            return self._embedded(tokens) * math.sqrt(self.config.width)
        except IndexError:  # raised by the CPU's look-up itself, at no cost; a GPU stops on its own
            self.check(tokens)
            raise

    def check(self, tokens: Tensor) -> None:
        """Refuse token ids that the vocabulary does not have. For where data enters: it makes a GPU wait."""
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocab:
            raise InputError(
                f"token ids should lie between 0 and {self.config.vocab - 1}; found {low if low < 0 else high}; "
                "was the text prepared with another tokenizer?"
            )

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(…) The cross-entropy of each target, -log p, in the order of the tokens.

        Targets may still lie on the CPU: with clusters, a GPU need not be waited for then.
        """
        return self._checked_nats(hidden, targets, self._nats)

    def smoothed_nats(self, hidden: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """(…) The cross-entropy with label smoothing: 1 - ε on the target, ε / (V - 1) on every other token."""

        def nats_of(rows: Tensor, wanted: Tensor) -> Tensor:
            if self.config.clusters == 1:
                return linear_nats(*self._cluster(0, rows), wanted, smoothing)
            return smoothed_nats(self.logprobs(rows), wanted.to(rows.device, non_blocking=True), smoothing)

        return self._checked_nats(hidden, targets, nats_of)

    def _checked_nats(
        self, hidden: Tensor, targets: Tensor, nats_of: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """What `nats_of` makes of rows (R, C) and their targets (R,), which are checked."""
        if hidden.shape[:-1] != targets.shape:
            raise InputError(
                f"hidden states {tuple(hidden.shape)} want targets {tuple(hidden.shape[:-1])}; "
                f"found {tuple(targets.shape)}: one target for each state, the token that follows it"
            )
        try:
            return nats_of(hidden.flatten(0, -2), targets.flatten().long()).view(targets.shape)
        except (IndexError, RuntimeError):  # as in `embed`
            self.check(targets)
            raise

    def _nats(self, rows: Tensor, wanted: Tensor) -> Tensor:
        """(R,) The cross-entropy of a token in a tail is that of the tail plus that of the token within it."""
        edges = self.config.edges
        head = wanted
        for cluster in range(1, self.config.clusters):
            inside = (wanted >= edges[cluster]) & (wanted < edges[cluster + 1])
            head = torch.where(inside, edges[1] + cluster - 1, head)
        nats = linear_nats(*self._cluster(0, rows), head)
        for cluster in range(1, self.config.clusters):
            # An empty choice of rows is kept, so that a cluster without tokens still gets its zero gradient.
            chosen = (head == edges[1] + cluster - 1).nonzero().squeeze(1)
            inside = (wanted[chosen] - edges[cluster]).to(rows.device, non_blocking=True)
            chosen = chosen.to(rows.device, non_blocking=True)
            tail = linear_nats(*self._cluster(cluster, rows[chosen]), inside)
            nats = nats.index_add(0, chosen, tail)
        return nats

    def logprobs(self, hidden: Tensor) -> Tensor:
        """(…, V) The log-probabilities of all tokens."""
        shortlist, clusters = self.config.edges[1], self.config.clusters
        head = _log_softmax(*self._cluster(0, hidden))
        if clusters == 1:
            return head
        parts = [head[..., :shortlist]]
        for cluster in range(1, clusters):
            tail = _log_softmax(*self._cluster(cluster, hidden))
            parts.append(tail + head[..., shortlist + cluster - 1, None])
        return torch.cat(parts, dim=-1)

    def output(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of a single cluster: states (…, E), table (V, E) and biases (V,), whose logits are states table' + biases."""
        assert self.config.clusters == 1
        return self._cluster(0, hidden)

    def _embedded(self, tokens: Tensor) -> Tensor:
        if self.config.divisor == 1:
            return self._widened("0", F.embedding(tokens, self.tables[0]))
        if not tokens.is_cpu or tracing():
            return self._embedded_by_all(tokens)
        vectors: Tensor = self.tables[0].new_zeros(*tokens.shape, self.config.width)
        cuts = torch.tensor(self.config.cutoffs)
        home = torch.bucketize(tokens.contiguous(), cuts, right=True)
        for cluster, (first, table) in enumerate(zip(self.config.edges, self.tables, strict=False)):
            chosen = (home == cluster).nonzero(as_tuple=True)
            rows = F.embedding(tokens[chosen] - first, table)
            vectors = vectors.index_put(chosen, self._widened(str(cluster), rows).to(vectors.dtype))
        return vectors

    def _embedded_by_all(self, tokens: Tensor) -> Tensor:
        """The same, with every token looked up in every cluster: tails are narrow, no GPU is waited for, and a traced
        graph has no choice of rows.
        """
        vectors: Tensor | None = None
        for cluster, (first, table) in enumerate(zip(self.config.edges, self.tables, strict=False)):
            inside = self._in_cluster(tokens, cluster)
            rows = F.embedding(torch.where(inside, tokens - first, 0), table)
            widened = self._widened(str(cluster), rows)
            vectors = widened if vectors is None else torch.where(inside[..., None], widened, vectors)
        assert vectors is not None
        return vectors

    def _in_cluster(self, tokens: Tensor, cluster: int) -> Tensor:
        """Which tokens a cluster looks up: ids that are unknown go to the first or last, which refuses them."""
        first, end = self.config.edges[cluster : cluster + 2]
        if cluster == 0:
            return tokens < end
        return tokens >= first if cluster + 1 == len(self.tables) else (tokens >= first) & (tokens < end)

    def _widened(self, name: str, vectors: Tensor) -> Tensor:
        """(…, C) A cluster's vectors (…, E), through its projection if it has one."""
        return F.linear(vectors, self.projections[name]) if name in self.projections else vectors

    def _cluster(self, cluster: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden states as the cluster sees them (…, E), its table (V, E) and its biases (V,)."""
        tables = self.tables if self.config.tied else self.out_tables
        left, right = self.config.edges[cluster : cluster + 2]
        if self.config.divisor == 1:
            table, bias = tables[0][left:right], self.biases[0][left:right] if self.biases else None
        else:
            table, bias = tables[cluster], self.biases[cluster] if self.biases else None
        if cluster == 0 and self.config.clusters > 1:
            table = torch.cat([table, self.cluster_table])
            bias = None if bias is None else torch.cat([bias, self.cluster_bias])
        if self.config.projected(cluster):
            hidden = hidden @ self._out_projection(cluster)
        return hidden, table, bias

    def _out_projection(self, cluster: int) -> Tensor:
        """(C, E) The cluster's own, or the embedding's where they are tied."""
        name, tied = str(cluster), "0" if self.config.divisor == 1 else str(cluster)
        own = name in self.out_projections
        projection: Tensor = self.out_projections[name] if own else self.projections[tied]
        return projection


def source_vocabulary(config: TranslationConfig) -> Vocabulary:
    """The source's own, where it does not share the target's: an embedding alone."""
    return embedding_alone(
        VocabularyConfig(vocab=config.source_vocab, width=config.width, embedding=config.embedding)
    )


def embedding_alone(config: VocabularyConfig) -> Vocabulary:
    """A vocabulary without an output layer."""
    vocabulary = Vocabulary(config, bias=False)
    vocabulary.out_projections.clear()
    return vocabulary


def _log_softmax(hidden: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    logits = F.linear(hidden, table, bias)
    return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def linear_nats(
    rows: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    """(R,) -log softmax(rows table' + bias) at the targets, holding at most `LOGITS_AT_ONCE` logits.

    With label smoothing, the mean of -log softmax over the smoothed target.
    """
    targets = targets.to(rows.device, non_blocking=True)
    if len(rows) <= MIN_ROWS or len(rows) * len(table) <= LOGITS_AT_ONCE:
        return smoothed_nats(_log_softmax(rows, table, bias), targets, smoothing)
    nats: Tensor = _ChunkedNats.apply(rows.to(table.dtype), table, bias, targets, smoothing)
    return nats


class _ChunkedNats(torch.autograd.Function):
    """`linear_nats` in chunks of rows. The backward pass recomputes each chunk's logits: none are saved."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        kind = torch.promote_types(rows.dtype, torch.float32)
        nats = torch.empty(len(rows), dtype=kind, device=rows.device)
        whole = torch.empty_like(nats)  # logsumexp of the logits
        each = smoothing / max(1, len(table) - 1)  # of the target, on every token but the right one
        for few in _chunks(len(rows), len(table)):
            logits, chosen = _logits(rows[few], table, bias), targets[few, None]
            right, total = logits.gather(1, chosen), logits.sum(dim=1) if smoothing else None
            surprise = -torch.ops.aten._log_softmax.out(logits, -1, False, out=logits).gather(1, chosen)
            nats[few], whole[few] = surprise.squeeze(1), (right + surprise).squeeze(1)
            if total is not None:  # the others' -log p is V - 1 times logsumexp, less the sum of their logits
                others = (len(table) - 1) * whole[few] - (total - right.squeeze(1))
                nats[few] = (1 - smoothing) * nats[few] + each * others
        ctx.save_for_backward(rows, table, bias, targets, whole)
        ctx.right, ctx.each = 1 - smoothing, each
        return nats

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        rows, table, bias, targets, whole = ctx.saved_tensors
        to_rows, to_table = torch.empty_like(rows), torch.empty_like(table)
        to_bias = None if bias is None else torch.zeros_like(bias)
        for number, few in enumerate(_chunks(len(rows), len(table))):
            # d nats / d logits = probabilities, less the target
            slope = _logits(rows[few], table, bias).sub_(whole[few, None]).exp_()
            if ctx.each:
                slope.sub_(ctx.each)
            right = torch.full_like(slope[:, :1], ctx.each - ctx.right)
            slope.scatter_add_(1, targets[few, None], right)
            slope = slope.mul_(gradient[few, None]).to(rows.dtype)
            to_rows[few] = slope @ table
            to_table.addmm_(slope.T, rows[few], beta=1 if number else 0)
            if to_bias is not None:
                to_bias += slope.sum(dim=0)
        return to_rows, to_table, to_bias, None, None


def _logits(rows: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """(R, V) In float32 at least; valid until the next call."""
    kind = torch.promote_types(rows.dtype, torch.float32)
    if kind != rows.dtype:
        return F.linear(rows, table, bias).to(kind)
    logits = scratch("logits", len(rows), len(table), like=rows)
    if bias is None:
        return torch.mm(rows, table.T, out=logits)
    return torch.addmm(bias, rows, table.T, out=logits)


def _chunks(rows: int, columns: int) -> list[slice]:
    few = max(MIN_ROWS, LOGITS_AT_ONCE // columns)
    return [slice(first, first + few) for first in range(0, rows, few)]
