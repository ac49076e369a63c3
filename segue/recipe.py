"""Recipes: everything that defines a run, as TOML on disk, checked when it is built. Imports no torch.

The data that a run was trained on is recorded beside its recipe.
"""

import json
import tomllib
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from segue.config import (
    EncoderConfig,
    EncoderReading,
    HeadConfig,
    LanguageConfig,
    Reach,
    Reading,
    Settings,
    StepsConfig,
    Translating,
    TranslationConfig,
    XLConfig,
    check_encoder_parts,
)
from segue.errors import ConfigError
from segue.kinds import kind_of
from segue.renamed import renamed

LONGEST, LONGEST_LINE = 2**16, 1000
"""Characters of a recipe and of its lines at most: tomllib takes quadratic time for names of many parts."""

Extension = Literal["hold", "rewarm", "stretch"]
"""The learning rate of a run beyond its planned end.

hold: that of its last step. rewarm: the whole schedule once more, warm-up included, over the steps that
were added. stretch: as if all steps had been planned from the beginning, so it jumps.
"""


class Schedule(Settings):
    """The settings of all training. Intervals count steps; 0 means never."""

    steps: PositiveInt
    optimizer: Literal["adam", "adamw", "muon", "sgd", "nesterov"] = (
        "adam"  # muon: for the layers' matrices, adamw for the rest; sgd and nesterov have the momentum beta1
    )
    learning_rate: PositiveFloat = 2.5e-4
    schedule: Literal["cosine", "linear", "inverse-sqrt", "constant"] = "cosine"
    warmup: NonNegativeInt = 0  # steps of linear rise
    floor: NonNegativeFloat = (
        0.0  # the last learning rate, as a share of the first (cosine, linear, cool-down)
    )
    cooldown: NonNegativeInt = (
        0  # last steps of a constant schedule, in which the learning rate falls to the floor
    )
    extensions: tuple[tuple[PositiveInt, Extension], ...] = ()  # earlier ends of the run, and how it went on
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: NonNegativeFloat = 0.0  # with all but adam
    epsilon: PositiveFloat = 1e-8  # of Adam
    clip: NonNegativeFloat = 0.25  # the gradient's norm is clipped to this; 0: no clipping
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast, for GPUs
    seed: NonNegativeInt = 0
    validate_every: NonNegativeInt = 0
    patience: NonNegativeInt = 0  # validations without progress before it stops
    save_every: NonNegativeInt = 1000  # it also saves at the end, and when the command line is interrupted
    frozen: bool = False  # the embedding does not move (nor the output, where they are tied)
    keep: PositiveInt = 2  # newest checkpoints, besides the best
    ponder: NonNegativeFloat = 0.0  # τ, the weight of the ponder cost in the loss, for models that halt
    sharded: bool = False  # several ranks hold a part of each weight (FSDP2), instead of all of them
    minutes: PositiveFloat | None = None  # stop after so long, whatever the step

    @property
    def trunk(self) -> int:
        """The step before the cool-down, whose checkpoint is kept: extending the run goes on from there."""
        return self.steps - self.cooldown

    @property
    def depends_on_steps(self) -> bool:
        """Whether changing `steps` changes the learning rate of earlier steps."""
        return self.schedule in ("cosine", "linear")

    @model_validator(mode="after")
    def _nothing_is_without_effect(self) -> Self:
        if self.cooldown and self.schedule != "constant":
            raise ValueError(
                f"cooldown ends a constant schedule; found schedule={self.schedule!r}, which falls by itself"
            )
        if self.cooldown > self.steps:
            raise ValueError(
                f"a cooldown of {self.cooldown} steps is longer than the run of {self.steps}; "
                f"use train.cooldown={self.steps // 5}, say"
            )
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(f"adam has no weight decay; found weight_decay={self.weight_decay}: use adamw")
        if self.patience and not self.validate_every:
            raise ValueError(f"patience {self.patience} counts validations; set validate_every too")
        if self.sharded and self.optimizer == "muon":
            raise ValueError(
                "muon needs whole matrices, and sharded ranks hold parts; use adamw, or sharded=false"
            )
        return self


class TrainConfig(Schedule):
    """Training of a language model."""

    lanes: PositiveInt  # B
    segment: PositiveInt  # T
    memory: NonNegativeInt  # M
    clamp: PositiveInt | None = None  # as in Reach
    span: PositiveInt | None = None  # as in Reach: windowed attention
    pinned: NonNegativeInt = 0  # as in Reach: global tokens
    accumulate: PositiveInt = 1  # micro-batches of lanes in one step, each with its own memory
    loss: Literal["whole", "half"] = "whole"  # half: only the segment's second half counts (Al-Rfou)
    intermediate: NonNegativeInt = (
        0  # layer l of N predicts too, until step l/N of this (Al-Rfou: half of all)
    )
    ahead: Literal[1, 2] = 1  # 2: the token after the next is a target too, at half the weight (Al-Rfou)
    documents: bool = True  # memory ends where a document does
    initial: Literal["empty", "zeros"] = "empty"  # as in Reach
    positions: Literal["onward", "restart", "confused"] = "onward"  # as in Reach
    validate_tokens: PositiveInt = 100_000

    @model_validator(mode="after")
    def _lanes_divide(self) -> Self:
        if self.lanes % self.accumulate:
            raise ValueError(f"lanes {self.lanes} is not a multiple of accumulate {self.accumulate}")
        if self.initial == "zeros" and self.documents:
            raise ValueError("a memory of zeros cannot begin in the middle of a segment; set documents=false")
        if self.loss == "half" and (self.intermediate or self.ahead > 1):
            raise ValueError(
                "with intermediate losses or two targets every position counts; set loss='whole'"
            )
        return self

    def heads(self, layers: int) -> int:
        """Output layers that belong to training alone: of every layer and target but the last layer's first."""
        return (layers if self.intermediate else 1) * self.ahead - 1

    @property
    def reach(self) -> Reach:
        return Reach(
            memory=self.memory,
            clamp=self.clamp,
            span=self.span,
            pinned=self.pinned,
            initial=self.initial,
            positions=self.positions,
        )


class PairTrainConfig(Schedule):
    """Training of a translator."""

    tokens: PositiveInt = 2048  # of either side in a batch, padding included
    accumulate: PositiveInt = 1  # micro-batches in one step
    smoothing: float = Field(0.1, ge=0, lt=1)  # probability spread over all tokens but the right one
    best: Literal["loss", "bleu"] = "loss"  # the validation metric that chooses the best checkpoint


class EncoderTrainConfig(Schedule):
    """Training of an encoder. A text has at most `reading.max_length` tokens, in training too."""

    batch: PositiveInt = 32  # texts in a step
    accumulate: PositiveInt = 1  # micro-batches in one step
    masked: float = Field(0.15, gt=0, lt=1)  # share of a text's tokens that are predicted
    whole_words: bool = False  # all pieces of a word are masked together
    short_steps: NonNegativeInt = 0  # first steps, with texts of `short_length` tokens: they cost less
    short_length: int = Field(0, ge=0)
    validate_tokens: PositiveInt = 100_000

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.accumulate > self.batch:
            raise ValueError(f"a batch of {self.batch} texts has no {self.accumulate} micro-batches")
        if bool(self.short_steps) != bool(self.short_length) or 0 < self.short_length < SHORTEST_TEXT:
            raise ValueError(
                f"short_steps and short_length belong together, of {SHORTEST_TEXT} tokens or more; "
                f"found short_steps={self.short_steps} and short_length={self.short_length}"
            )
        return self

    def length_at(self, step: int, longest: int) -> int:
        """The tokens of a text at a step, counted from 0."""
        return self.short_length if step < self.short_steps else longest


MASKING = ("masked", "whole_words", "short_steps", "short_length", "validate_tokens")
"""Settings of `EncoderTrainConfig` that have an effect on masked language modelling only."""

SHORTEST_TEXT = 8
"""Tokens of a text in pre-training at least: [CLS], [SEP], perhaps another [SEP], and some words."""


class Recipe(Settings):
    """Everything that defines a run."""

    model: LanguageConfig
    train: TrainConfig
    reading: Reading

    @model_validator(mode="after")
    def _positions_agree(self) -> Self:
        trained, read = self.train.positions, self.reading.reach.positions
        counting = isinstance(self.model, XLConfig) and self.model.position_encoding.counts
        if counting and trained != read:
            raise ValueError(
                f"train.positions is {trained!r} and reading.reach.positions {read!r}; make them agree"
            )
        if (self.train.intermediate or self.train.ahead > 1) and not isinstance(self.model, XLConfig):
            raise ValueError(
                "train.intermediate and train.ahead are for a Transformer's layers; "
                f"a {self.model.kind} model is trained without them"
            )
        return self

    @model_validator(mode="after")
    def _ponder_costs_something(self) -> Self:
        check_ponder(self.model, self.train)
        return self

    @property
    def head_parameters(self) -> int:
        """Weights that belong to training alone."""
        layers = self.model.layers if isinstance(self.model, XLConfig) else 1
        return self.train.heads(layers) * self.model.vocab * self.model.width


class TranslationRecipe(Settings):
    """Everything that defines a run of a translator."""

    model: TranslationConfig
    train: PairTrainConfig
    translating: Translating

    @model_validator(mode="after")
    def _ponder_costs_something(self) -> Self:
        check_ponder(self.model, self.train)
        return self


class EncoderRecipe(Settings):
    """Everything that defines a run of an encoder: pre-training with masked words, or fine-tuning for a task."""

    model: EncoderConfig
    task: HeadConfig
    train: EncoderTrainConfig
    reading: EncoderReading

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_encoder_parts(self.model, self.task, self.reading)
        if self.train.ponder:
            raise ValueError(
                "train.ponder is the cost of each token's steps, and an encoder does not choose them"
            )
        if self.task.task == "masked":
            self._check_masked()
            return self
        default = EncoderTrainConfig(steps=1)
        idle = [name for name in MASKING if getattr(self.train, name) != getattr(default, name)]
        if idle:
            raise ValueError(f"train.{idle[0]} belongs to the task 'masked'; found task {self.task.task!r}")
        return self

    def _check_masked(self) -> None:
        longest = self.reading.max_length
        if longest < SHORTEST_TEXT or self.train.short_length > longest:
            raise ValueError(
                f"masked texts have reading.max_length tokens, {SHORTEST_TEXT} or more and at least "
                f"train.short_length; found max_length={longest} and short_length={self.train.short_length}"
            )
        if self.task.next_sentence and self.model.types < 2:
            raise ValueError("next_sentence reads pairs of texts; use model.types=2")


AnyRecipe = Recipe | TranslationRecipe | EncoderRecipe


def check_ponder(model: LanguageConfig | TranslationConfig, train: Schedule) -> None:
    """Refuse a ponder cost for a model that does not halt."""
    if train.ponder and not (isinstance(model, StepsConfig) and model.halts):
        steps = isinstance(model, StepsConfig)
        way = "set model.halting='act'" if steps else "only Universal Transformers do"
        raise ValueError(
            f"train.ponder is the cost of each token's steps, and a model of kind {model.kind!r} "
            f"{'without halting ' if steps else ''}does not choose them; leave it out ({way})"
        )


def recipe_of(values: dict[str, Any]) -> AnyRecipe:
    """A recipe of any kind; `model.kind` says which."""
    match kind_of(values).task:
        case "translation":
            return TranslationRecipe(**values)
        case "encoding":
            return EncoderRecipe(**values)
        case "language":
            return Recipe(**values)


def read_recipe(path: Path) -> dict[str, Any]:
    """The values of a recipe in TOML, not yet checked, under the names of this version."""
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > LONGEST or any(len(line) > LONGEST_LINE for line in text.splitlines()):
            raise ConfigError(
                f"{path} is no recipe: it has more than {LONGEST:,} characters, or {LONGEST_LINE:,} in a line"
            )
        return renamed(tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be read; is it the right file?") from None
    except ValueError as error:  # of the syntax, of UTF-8, or of a number with thousands of digits
        raise ConfigError(f"{path} is no TOML: {error}") from None


def recipe_toml(recipe: AnyRecipe) -> str:
    """A recipe as TOML; what is not set is left out."""
    lines: list[str] = []

    def table(name: str, values: dict[str, Any]) -> None:
        lines.append(f"[{name}]")
        plain = {
            key: value for key, value in values.items() if value is not None and not isinstance(value, dict)
        }
        lines.extend(f"{key} = {_in_toml(value)}" for key, value in plain.items())
        lines.append("")
        for key, value in values.items():
            if isinstance(value, dict):
                table(f"{name}.{key}", value)

    for name, values in recipe.model_dump(mode="json").items():
        table(name, values)
    return "\n".join(lines)


def _in_toml(value: Any) -> str:
    """A value as TOML; of a list of names, each in its own line, since lines have a limit."""
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return "[\n" + "".join(f"    {_in_toml(name)},\n" for name in value) + "]"
    # JSON writes characters beyond U+FFFF as two surrogates, and DEL as it is: TOML forbids both
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_changes(values: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A copy of nested values with each change `a.b=c` applied; c is TOML, or else a plain word."""
    changed = deepcopy(values)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"--set wants name=value, such as train.steps=500; found {change!r}")
        *groups, name = path.strip().split(".")
        place = changed
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {change}: {group!r} is a value, not a group of values")
        place[name] = _toml_value(text.strip())
    return changed


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
