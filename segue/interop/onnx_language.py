"""Language models as one step that can be traced: (tokens, memory, seen) to (log-probabilities, memory, seen).

    tokens (B, T); memory, one tensor or several whose first axis is the lane; seen (B,), the tokens read so far

A lane begins with `seen` zero, whatever its memory holds. Memory leaves as large as it came, so its length is the
caller's choice. The mathematics are the models' own, in their textbook form.

Letters: B lanes, T tokens in the segment, M rows in memory, S = M + T keys, H heads, D head width, C width, N layers.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from segue.config import Reach
from segue.errors import SourceError
from segue.nn.block import Block, Source
from segue.nn.convolution import Boundaries, Convolution
from segue.nn.convolutional import ConvolutionalModel
from segue.nn.kernel import KernelModel
from segue.nn.kernel_chunk import ChunkMask
from segue.nn.language import LanguageModel
from segue.nn.layout import SegmentLayout
from segue.nn.mask import AttentionMask
from segue.nn.patterns import BlockGrid, layer_patterns
from segue.nn.performer import orthogonal
from segue.nn.positions import ALiBiPositions, Relative, RelativeKeys, ShawPositions, sinusoids
from segue.nn.recurrent import STATES, RecurrentModel
from segue.nn.universal import UniversalTransformer
from segue.nn.xl import TransformerWithMemory, TransformerXL

Shape = tuple[int | str, ...]
"""Of an input: a number, or the name of a size that every call may choose."""


class LanguageStep(nn.Module):
    """What the steps of all kinds have in common."""

    model: LanguageModel
    memory_shapes: dict[str, Shape]  # by the names of the inputs, without their lanes

    def forward(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        *memory, seen = state
        places = seen[:, None] + torch.arange(tokens.size(1))
        hidden, after = self.read(tokens, memory, places)
        return self.model.logprobs(hidden), *after, seen + tokens.size(1)

    def read(self, tokens: Tensor, memory: list[Tensor], places: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Hidden states (B, T, C) and memory after tokens (B, T) that stand at `places` (B, T) of their documents."""
        raise NotImplementedError


class AttentionStep(LanguageStep):
    """Transformer-XL and the Universal Transformer: memory has keys and values, (B, N, 2, M, H, D).

    Whatever has a place below zero is not the lane's own: so a lane of negative `seen` begins with padding.
    """

    model: TransformerWithMemory

    def __init__(self, model: TransformerWithMemory, reach: Reach) -> None:
        super().__init__()
        self.model, self.reach = model, reach
        config = model.config
        self.memory_shapes = {"memory": (config.layers, 2, "memory", config.heads, config.head_width)}

    def read(self, tokens: Tensor, memory: list[Tensor], places: Tensor) -> tuple[Tensor, list[Tensor]]:
        model, size, held = self.model, tokens.size(1), memory[0].size(3)
        keys = held + size
        rows = places[:, :1] - held + torch.arange(keys)  # (B, S) the places of all keys
        past = self._begun(memory[0], rows[:, :held]).movedim(0, 3)  # (N, 2, M, B, H, D)
        counted = (
            places.clamp(min=0) if self.reach.positions == "onward" else torch.arange(size).expand_as(places)
        )
        hidden = model.positions.embedded(model.vocabulary.embed(tokens.T), counted.T)
        masks, relative = self._masks(rows, held, size), self._relative(keys)
        kept: list[Tensor] = []

        def take(layer: int, entered: Tensor) -> Tensor:
            number = layer % len(model.blocks)
            after, keys_values = read_layer(
                model.blocks[number], entered, past[layer], relative[number], masks[layer]
            )
            kept.append(keys_values[:, size:])
            return after

        if isinstance(model, UniversalTransformer):
            hidden, _ = model.recurrence(hidden, (places >= 0).T, take)
        else:
            for layer in range(model.config.layers):
                hidden = take(layer, model.layer_input(layer, hidden, tokens.T, counted.T))
        return hidden.transpose(0, 1), [torch.stack(kept).movedim(3, 0)]

    def _begun(self, memory: Tensor, places: Tensor) -> Tensor:
        """With an initial memory of zeros: keys and values of zeros for the rows before place 0."""
        if self.reach.initial == "empty":
            return memory  # such rows are masked
        zero, rows = torch.zeros(1, 1, self.model.config.width), []
        for layer in range(self.model.config.layers):
            block = self.model.blocks[layer % len(self.model.blocks)]
            assert isinstance(block, Block)
            rows.append(block.attention.project(block.normed_input(zero)))
        nothing = torch.stack(rows)
        return torch.where((places >= 0)[:, None, None, :, None, None], memory, nothing.movedim(3, 0))

    def _masks(self, places: Tensor, held: int, size: int) -> list[AttentionMask]:
        documents = None if self.reach.initial == "zeros" else torch.where(places >= 0, 0, -1)
        onward = places if self.reach.positions == "onward" else places - places[:, held : held + 1]
        masks = []
        for pattern in layer_patterns(self.model.config):
            fixed = pattern is not None and pattern.kind == "fixed"
            grid = BlockGrid(onward, documents, held, 0, places.device) if fixed else None
            masks.append(AttentionMask(held, size, self.reach.span, documents, pattern=pattern, grid=grid))
        return masks

    def _relative(self, keys: int) -> list[Relative | None]:
        """As `model.relative_keys`, with a row for each of S distances: a clamp must not change a graph's shapes."""
        positions, clamp = self.model.positions, self.reach.clamp
        back = torch.arange(keys - 1, -1, -1)
        near = back if clamp is None else back.clamp(max=clamp)
        distances = positions.distances(keys, None, self.model.vocabulary.tables[0])
        if isinstance(positions, ShawPositions):
            farthest = min(clamp or positions.table.size(1), positions.table.size(1)) - 1
            distances = torch.cat([torch.tensor([farthest]), back.clamp(max=farthest)])
        elif isinstance(positions, ALiBiPositions):
            bias = distances.row_bias[keys - 1 - near]
            nothing = distances.content_bias
            return [RelativeKeys(torch.zeros_like(bias)[..., None], nothing, nothing, bias)] * len(
                self.model.blocks
            )
        elif isinstance(distances, Tensor):
            distances = distances[keys - 1 - near]
        return [positions.relative_keys(layer, distances) for layer in range(len(self.model.blocks))]


def read_layer(
    block: nn.Module,
    hidden: Tensor,
    past: Tensor,
    relative: Relative | None,
    mask: AttentionMask,
    source: Source | None = None,
) -> tuple[Tensor, Tensor]:
    """A block's output (T, B, C) behind keys and values (2, M, B, H, D); and these with its own, (2, S, B, H, D)."""
    assert isinstance(block, Block)
    normed = block.normed_input(hidden)
    keys_values = torch.cat([past, block.attention.project(normed)], dim=1)
    gathered = block.attention(normed, keys_values, relative, mask)
    return block.behind_attention(hidden, gathered, source), keys_values


class RecurrentStep(LanguageStep):
    """RNN, GRU and LSTM: memory (B, N, K, C) is the state of each layer, with the cell of an LSTM."""

    model: RecurrentModel

    def __init__(self, model: RecurrentModel) -> None:
        super().__init__()
        self.model, config = model, model.config
        self.memory_shapes = {"memory": (config.layers, STATES[config.cell], config.width)}

    def read(self, tokens: Tensor, memory: list[Tensor], places: Tensor) -> tuple[Tensor, list[Tensor]]:
        begun = memory[0] * (places[:, 0] > 0)[:, None, None, None]
        states = [state.transpose(0, 1) for state in begun.unbind(dim=2)]
        inputs = self.model.vocabulary.embed(tokens)
        hidden, after = self.model.cells(inputs, tuple(states) if len(states) > 1 else states[0])
        newest = torch.stack(after if len(states) > 1 else [after], dim=2)
        return hidden, [newest.transpose(0, 1)]


class KernelStep(LanguageStep):
    """Kernel attention: memory (B, N, H, F, D + 1) is the sums over all that was read."""

    model: KernelModel

    def __init__(self, model: KernelModel) -> None:
        super().__init__()
        self.model, config = model, model.config
        level = config.features == "performer"
        for block in model.blocks if level else ():
            block.folded = orthogonal(block.directions)  # type: ignore[arg-type]
        shape = config.layers, config.heads, config.feature_count + level, config.head_width + 1
        self.memory_shapes = {"memory": shape}

    def read(self, tokens: Tensor, memory: list[Tensor], places: Tensor) -> tuple[Tensor, list[Tensor]]:
        model, size = self.model, tokens.size(1)
        hidden = model.vocabulary.embed(tokens)
        if model.config.encoding == "sinusoidal":
            hidden = hidden + sinusoids(places, model.config.width, hidden.dtype)
        numbers, real = torch.arange(size), torch.ones_like(tokens, dtype=torch.bool)
        visible = (numbers[:, None] >= numbers).expand(tokens.size(0), -1, -1)
        carried = places[:, 0] > 0
        whole = ChunkMask(0, size, real, visible, real & carried[:, None], real, carried)
        states = []
        for layer, block in enumerate(model.blocks):
            hidden, state = block(hidden, memory[0][:, layer], [whole])
            states.append(state)
        return hidden, [torch.stack(states, dim=1)]


class ConvolutionalStep(LanguageStep):
    """Convolutions: memories (B, rows, C) are the inputs that each still sees."""

    model: ConvolutionalModel

    def __init__(self, model: ConvolutionalModel) -> None:
        super().__init__()
        if model.config.gate == "qrnn":
            raise SourceError(
                "a QRNN goes from token to token in a loop, which no traced graph has; it cannot be exported to ONNX"
            )
        self.model = model
        for part in model.modules():
            if isinstance(part, Convolution):
                part.folded = part.weight().detach()
        shapes = [shape for block in model.blocks for shape in block.row_shapes]  # type: ignore[union-attr]
        self.memory_shapes = {f"memory.{number}": shape for number, shape in enumerate(shapes)}

    def read(self, tokens: Tensor, memory: list[Tensor], places: Tensor) -> tuple[Tensor, list[Tensor]]:
        model, rows = self.model, []
        carried = (places[:, 0] > 0)[:, None, None]
        past = iter([one * carried for one in memory])
        boundaries = Boundaries(SegmentLayout(*tokens.shape), tokens.device)
        ends = model.vocabulary if model.input_vocabulary is None else model.input_vocabulary
        hidden = ends.embed(tokens.T)
        for block in model.blocks:
            hidden, newest = block(hidden, [next(past) for _ in block.row_shapes], boundaries)  # type: ignore[union-attr]
            rows += newest
        return hidden.transpose(0, 1), rows


def language_step(model: LanguageModel, reach: Reach) -> LanguageStep:
    """The step of a model that is read with this reach."""
    if isinstance(model, (TransformerXL, UniversalTransformer)):
        if reach.pinned:
            raise SourceError(
                f"pinned {reach.pinned} rows have no ONNX form; export a model that is read without them"
            )
        if model.ngrams is not None:
            raise SourceError("n-gram embeddings have no ONNX form; export a model with ngrams=1")
        model.start(reach=reach)  # refuses what this model cannot read with
        return AttentionStep(model, reach)
    steps: dict[type[LanguageModel], Callable[..., LanguageStep]] = {
        RecurrentModel: RecurrentStep,
        KernelModel: KernelStep,
        ConvolutionalModel: ConvolutionalStep,
    }
    if type(model) not in steps:
        raise SourceError(f"a {model.config.kind} model has no ONNX form")
    if not reach.memory or reach.positions != "onward":
        raise SourceError(
            f"a {model.config.kind} model reads on by its state, and this one is read with {reach}; "
            "export it with memory=1 or more and positions='onward'"
        )
    return steps[type(model)](model)
