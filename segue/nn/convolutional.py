"""Convolutional language models: GCNN (Dauphin 2017), TCN (Bai 2018), and QRNN (Bradbury 2017), which adds a state.

    hidden, memory = model(tokens, memory)

The memory is what the filters still see, so reading is exact however a stream is cut, and nothing beyond the receptive
field is known; a QRNN's states know everything. Letters: B lanes, T tokens in the segment, C width. Time comes first.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.config import (
    ConvolutionalConfig,
    ConvolutionLayer,
    KVCache,
    Reach,
    Reading,
    VocabularyConfig,
)
from segue.errors import InputError
from segue.nn.changes import Watch
from segue.nn.convolution import Boundaries, Convolution
from segue.nn.dropout import Dropout
from segue.nn.engine import Engine, refuse_rounding, twin
from segue.nn.filter_memory import FilterMemory, newest_rows
from segue.nn.language import LanguageModel, check_lanes
from segue.nn.layout import HOST, checked_layout
from segue.nn.memory import Memory, padded_to
from segue.nn.scan import scan
from segue.nn.vocab import Vocabulary, embedding_alone
from segue.nn.xl import initialise

Rows = list[Tensor]
"""A block's memory, as many tensors (B, M, C) as `row_shapes` has entries."""


class GatedBlock(nn.Module):
    """Gated linear units, GCNN's: √½ (x + (x * W + b) ⊗ σ(x * V + c)).

    √½: else every layer could double the variance, and 14 of them grow states 128 times.
    """

    filter_length = (
        2**0.5
    )  # gates let through at most half of the squares, so fresh layers never enlarge states

    def __init__(self, inputs: int, layer: ConvolutionLayer, dropout: float) -> None:
        super().__init__()
        self.convolution = Convolution(inputs, 2 * layer.width, layer.kernel, layer.dilation, normed=True)
        self.residual = _residual(inputs, layer.width)
        self.dropout = Dropout(dropout)

    @property
    def row_shapes(self) -> list[tuple[int, int]]:
        return [(self.convolution.rows, self.convolution.inputs)]

    def forward(self, hidden: Tensor, past: Rows, boundaries: Boundaries) -> tuple[Tensor, Rows]:
        """The block's output (T, B, C), and its memory after the segment."""
        gated, rows = self.convolution(self.dropout(hidden), past[0], boundaries)
        return (self.residual(hidden) + F.glu(gated)) * 0.5**0.5, [rows]


class ResidualBlock(nn.Module):
    """A level of a TCN: ReLU(x + f(f(x))), where f is a convolution, ReLU and dropout."""

    filter_length = 3**-0.5  # torch's own start, which the published models really had

    def __init__(self, inputs: int, layer: ConvolutionLayer, dropout: float) -> None:
        super().__init__()
        shape = layer.width, layer.kernel, layer.dilation
        self.first = Convolution(inputs, *shape, normed=True)
        self.second = Convolution(layer.width, *shape, normed=True)
        self.residual = _residual(inputs, layer.width)
        self.dropout = Dropout(dropout)

    @property
    def row_shapes(self) -> list[tuple[int, int]]:
        return [(one.rows, one.inputs) for one in (self.first, self.second)]

    def forward(self, hidden: Tensor, past: Rows, boundaries: Boundaries) -> tuple[Tensor, Rows]:
        """The block's output (T, B, C), and its memory after the segment."""
        between, rows = self.first(hidden, past[0], boundaries)
        after, more = self.second(self.dropout(between.relu_()), past[1], boundaries)
        return (self.residual(hidden) + self.dropout(after.relu_())).relu(), [rows, more]


class QuasiRecurrentBlock(nn.Module):
    """A layer of a QRNN: z, f, o = tanh, σ, σ of convolutions; c_t = f c_{t-1} + (1 - f) z; h = o c."""

    filter_length = 3**-0.5  # torch's own start of linear layers

    def __init__(self, inputs: int, layer: ConvolutionLayer, dropout: float) -> None:
        super().__init__()
        self.convolution = Convolution(inputs, 3 * layer.width, layer.kernel, layer.dilation, normed=False)
        self.width, self.dropout = layer.width, Dropout(dropout)

    @property
    def row_shapes(self) -> list[tuple[int, int]]:
        return [(self.convolution.rows, self.convolution.inputs), (1, self.width)]

    def forward(self, hidden: Tensor, past: Rows, boundaries: Boundaries) -> tuple[Tensor, Rows]:
        """The layer's output (T, B, C), and its memory after the segment."""
        gates, rows = self.convolution(self.dropout(hidden), past[0], boundaries)
        content, gate, out = gates.tensor_split(3, dim=-1)
        forget, before = gate.sigmoid(), padded_to(past[1], 1).detach().transpose(0, 1).to(gates.dtype)
        fresh = (1 - forget) * content.tanh()
        goes_on = boundaries.goes_on
        if goes_on is not None:
            forget = forget * goes_on
        states = scan(forget, fresh, before[0])
        newest = newest_rows(torch.cat([before, states.detach()]), 1, boundaries.layout)
        return out.sigmoid() * states, [rows, newest]


BLOCKS: dict[str, Callable[[int, ConvolutionLayer, float], nn.Module]] = {
    "glu": GatedBlock,
    "tcn": ResidualBlock,
    "qrnn": QuasiRecurrentBlock,
}
"""By `ConvolutionalConfig.gate`."""


def _residual(inputs: int, outputs: int) -> nn.Module:
    """The way around a block: a projection where widths differ."""
    return nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)


class ConvolutionalModel(LanguageModel):
    """A causal language model of convolutions, one block above the other."""

    config: ConvolutionalConfig

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config)
        self.input_vocabulary = None
        if config.input_embedding:
            shape = VocabularyConfig(
                vocab=config.vocab, width=config.input_width, embedding=config.input_embedding
            )
            self.input_vocabulary = embedding_alone(shape)
        widths = [config.input_width, *(layer.width for layer in config.layers)]
        self.blocks = nn.ModuleList(
            BLOCKS[config.gate](width, layer, config.dropout)
            for width, layer in zip(widths, config.layers, strict=False)
        )
        self.dropout = Dropout(config.dropout)
        self._initialise()

    def _initialise(self) -> None:
        initialise(self, self.config.width**-0.5)
        if self.input_vocabulary is not None:
            initialise(self.input_vocabulary, self.config.input_width**-0.5)
        for block in self.blocks:
            for part in block.children():
                if isinstance(part, Convolution):
                    part.reset(block.filter_length)  # type: ignore[arg-type]
                elif isinstance(part, nn.Linear):
                    nn.init.normal_(part.weight, 0.0, part.in_features**-0.5)

    def start(self, *, lanes: int = 1, reach: Reach) -> FilterMemory:
        """The memory of lanes that have read nothing yet: zeros."""
        check_lanes(lanes)
        if reach.clamp is not None or reach.span is not None or reach.pinned:
            raise InputError(
                "clamp and span limit how far attention looks back, pinned rows stay in its sight, "
                "and a convolutional model has none; "
                "leave them out"
            )
        table = self.vocabulary.tables[0]
        rows = tuple(
            torch.zeros(lanes, count if reach.memory else 0, width, dtype=table.dtype, device=table.device)
            for count, width in self._row_shapes
        )
        nothing = torch.zeros(lanes, dtype=torch.int64, device=HOST)
        return FilterMemory(rows, nothing, nothing, reach)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, FilterMemory]:
        """Read a segment (B, T): its hidden states (B, T, C), zero in padding, and the memory to read on with."""
        layout = checked_layout(tokens, starts, lengths)
        memory = self._checked(memory, tokens)
        boundaries, past = Boundaries(layout, tokens.device), iter(memory.rows)
        ends = self.vocabulary if self.input_vocabulary is None else self.input_vocabulary
        hidden, rows = self.dropout(ends.embed(tokens.T)), []
        for block in self.blocks:
            hidden, newest = block(hidden, [next(past) for _ in block.row_shapes], boundaries)  # type: ignore[union-attr]
            rows += newest
        hidden = self.dropout(hidden).transpose(0, 1)
        if layout.padded is not None:
            hidden = hidden.masked_fill(layout.padded.to(tokens.device, non_blocking=True)[..., None], 0)
        return hidden, memory.advanced(rows, layout)

    def frozen(self, *, int8: bool = False, kv_cache: KVCache = "exact") -> "Engine[ConvolutionalModel]":
        """The engine that reads with these weights. While it is in use they must not change."""
        refuse_rounding(self, int8, kv_cache)
        return FrozenConvolutional(self)

    def looks_back(self, reading: Reading) -> int | None:
        """The receptive field, less the token itself; the states of a QRNN may depend on everything."""
        if not reading.reach.memory:
            return reading.segment
        return None if self.config.gate == "qrnn" else self.config.receptive_field - 1

    @property
    def _row_shapes(self) -> Sequence[tuple[int, int]]:
        """The count and width of all memory rows, in the order of the blocks."""
        return [shape for block in self.blocks for shape in block.row_shapes]  # type: ignore[union-attr]

    def _checked(self, memory: Memory, tokens: Tensor) -> FilterMemory:
        """The memory, if it is one of this model."""
        wanted = [(width,) for _, width in self._row_shapes]
        if not isinstance(memory, FilterMemory) or memory.row_shapes != wanted:
            raise InputError(
                f"this model's memory has {len(wanted)} rows of widths {[width for (width,) in wanted]}; found a "
                f"{type(memory).__name__} of {memory.row_shapes}; begin with model.start()"
            )
        self.check_place(memory, tokens)
        return memory


class FrozenConvolutional(Engine[ConvolutionalModel]):
    """Reads with weights whose norms are taken once, not for every token."""

    def __init__(self, model: ConvolutionalModel) -> None:
        super().__init__(twin(model))
        self._watch = Watch(model.parameters())
        with torch.no_grad():
            for part in self.model.modules():
                if isinstance(part, Convolution):
                    part.folded = part.weight()

    def _check_still(self) -> None:
        if self._watch.changed:
            raise InputError(
                "the model's weights have changed since it was frozen; call model.frozen() again"
            )
