"""RNN, LSTM and GRU language models; the memory is their hidden state.

    hidden, memory = model(tokens, memory)

Letters: B lanes, T tokens in the segment, N layers, K states of a layer (2 of an LSTM, else 1), C width, R runs.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from segue.config import Reach, Reading, RecurrentConfig
from segue.errors import InputError
from segue.nn.dropout import Dropout
from segue.nn.language import LanguageModel, check_lanes
from segue.nn.layout import HOST, SegmentLayout, checked_layout
from segue.nn.memory import CellMemory, Memory
from segue.nn.vocab import Vocabulary
from segue.nn.xl import initialise

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

STATES = {"rnn": 1, "gru": 1, "lstm": 2}
"""K"""

States = tuple[Tensor, ...]
"""K tensors (N, B, C): hidden states, and of an LSTM its cells."""


class RecurrentModel(LanguageModel):
    """A causal language model that carries one state per layer from token to token."""

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.cells = build_cells(config.cell, config.width, config.width, config.layers, config.dropout)
        self.dropout = Dropout(config.dropout)
        initialise(self, config.width**-0.5)
        self.cells.reset_parameters()
        if config.cell == "lstm":
            _open_forget_gates(self.cells)

    def start(self, *, lanes: int = 1, reach: Reach) -> CellMemory:
        """The memory of lanes that have read nothing yet: zeros."""
        check_lanes(lanes)
        if reach.clamp is not None or reach.span is not None or reach.pinned:
            raise InputError(
                "clamp and span limit how far attention looks back, pinned rows stay in its sight, "
                "and a recurrent model has none; "
                "leave them out"
            )
        shape = lanes, min(1, reach.memory), STATES[self.config.cell], self.config.width
        empty = self.vocabulary.tables[0].new_zeros(shape)
        nothing = torch.zeros(lanes, dtype=torch.int64, device=HOST)
        return CellMemory((empty,) * self.config.layers, nothing, nothing, reach)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, CellMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), zero in padding, and the memory to read on with."""
        layout = checked_layout(tokens, starts, lengths)
        row = STATES[self.config.cell], self.config.width
        self.check_memory(memory, tokens, self.config.layers, row)
        assert isinstance(memory, CellMemory)
        inputs = self.dropout(self.vocabulary.embed(tokens))
        hidden, after = run(self.cells, inputs, tuple(s.detach() for s in memory.states), layout)
        return self.dropout(hidden), memory.advanced(after, layout)

    def looks_back(self, reading: Reading) -> int | None:
        """A recurrent state may depend on everything that was read."""
        return None if reading.reach.memory else reading.segment


def build_cells(
    cell: str, inputs: int, width: int, layers: int, dropout: float, *, bidirectional: bool = False
) -> nn.RNNBase:
    """Torch's recurrent layers one above the other. (With a single layer, dropout between layers is a warning.)

    If bidirectional, each direction has half of the width.
    """
    return CELLS[cell](
        inputs,
        width // 2 if bidirectional else width,
        layers,
        batch_first=True,
        dropout=dropout if layers > 1 else 0.0,
        bidirectional=bidirectional,
    )


@torch.no_grad()
def _open_forget_gates(cells: nn.RNNBase) -> None:
    """A forget gate with bias 1, so that an LSTM remembers at first (Jozefowicz 2015)."""
    for layer in range(cells.num_layers):
        bias: Tensor = getattr(cells, f"bias_hh_l{layer}")
        bias[cells.hidden_size : 2 * cells.hidden_size] = 1.0


def run(cells: nn.RNNBase, inputs: Tensor, states: States, layout: SegmentLayout) -> tuple[Tensor, States]:
    """All outputs (B, T, C), zero in padding, and each lane's states behind its own last token.

    Where documents begin or lanes end inside the segment, each document's part is a run of its own, and all runs are
    read as one packed batch.
    """
    if layout.starts is None and layout.lengths is None:
        outputs, after = cells(inputs, _as_torch(states))
        return outputs, _as_tuple(after)
    runs = _runs(layout)
    if not len(runs.lane):
        return inputs.new_zeros(*inputs.shape[:2], cells.hidden_size), states
    return _run_apart(cells, inputs, states, runs)


def run_both_ways(cells: nn.RNNBase, inputs: Tensor, layout: SegmentLayout) -> tuple[Tensor, States]:
    """All outputs (B, T, C) of cells that read in both directions, zero in padding; and their last states, joined."""
    counts = layout.counts.clamp(min=1)  # torch packs no empty sequences
    packed = pack_padded_sequence(inputs, counts, batch_first=True, enforce_sorted=False)
    read, after = cells(packed)
    outputs, _ = pad_packed_sequence(read, batch_first=True, total_length=inputs.size(1))
    wanted = (layout.counts > 0).to(inputs.device, non_blocking=True)[:, None, None]
    states = (part.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2) for part in _as_tuple(after))  # (N, B, C)
    return outputs * wanted, tuple(state * wanted.transpose(0, 1) for state in states)


class _Runs(NamedTuple):
    """Parts of lanes that are read without a break, the longest first; on the CPU."""

    lane: Tensor  # (R,)
    begin: Tensor  # (R,)
    end: Tensor  # (R,)
    fresh: Tensor  # (R,) a document begins here
    last: Tensor  # (R,) nothing follows in its lane


def _runs(layout: SegmentLayout) -> _Runs:
    """Cut every lane where documents begin. Padding belongs to no run; a lane of padding alone has no run."""
    cuts = torch.zeros(layout.lanes, layout.size, dtype=torch.bool, device=HOST)
    if layout.starts is not None:
        cuts |= layout.starts
    fresh = cuts[:, 0].clone()
    cuts[:, 0] = layout.counts > 0
    lane, begin = cuts.nonzero(as_tuple=True)
    last = torch.ones_like(lane, dtype=torch.bool)
    last[:-1] = lane[1:] != lane[:-1]
    following = torch.cat([begin[1:], begin.new_zeros(1)])
    end = torch.where(last, layout.counts[lane], following)
    order = (end - begin).argsort(descending=True, stable=True)
    runs = _Runs(lane, begin, end, (begin > 0) | fresh[lane], last)
    return _Runs(*(values[order] for values in runs))


def _run_apart(cells: nn.RNNBase, inputs: Tensor, states: States, runs: _Runs) -> tuple[Tensor, States]:
    """The same run by run. All indices are made on the CPU, so that a GPU is never asked for their size."""

    def there(index: Tensor) -> Tensor:
        return index.to(inputs.device, non_blocking=True)

    lengths = runs.end - runs.begin
    steps = torch.arange(int(lengths.max()), device=HOST)
    inside = steps < lengths[:, None]
    places = (runs.begin[:, None] + steps).masked_fill(~inside, 0)
    lane, (run_number, step) = there(runs.lane), inside.nonzero(as_tuple=True)
    packed = pack_padded_sequence(inputs[lane[:, None], there(places)], lengths, batch_first=True)
    carried = there(~runs.fresh)[:, None]
    before = tuple(state[:, lane] * carried for state in states)
    read, after = cells(packed, _as_torch(before))
    padded, _ = pad_packed_sequence(read, batch_first=True)
    outputs = padded.new_zeros(*inputs.shape[:2], cells.hidden_size)
    written = there(runs.lane[run_number]), there(places[inside])
    outputs[written] = padded[there(run_number), there(step)]
    newest = there(runs.last.nonzero().squeeze(1))
    kept = (
        state.index_copy(1, lane[newest], new[:, newest])
        for state, new in zip(states, _as_tuple(after), strict=True)
    )
    return outputs, tuple(kept)


def _as_torch(states: States) -> Tensor | States:
    """As torch wants states: a tuple for an LSTM, a tensor for the others; contiguous."""
    whole = tuple(state.contiguous() for state in states)
    return whole if len(whole) > 1 else whole[0]


def _as_tuple(states: Tensor | States) -> States:
    return states if isinstance(states, tuple) else (states,)
