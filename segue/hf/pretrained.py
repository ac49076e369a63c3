"""What our classes share: a model of segue inside one of Hugging Face's, and memory that `generate` carries along."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from segue.errors import InputError
from segue.nn.block import Block
from segue.nn.changes import Watch
from segue.nn.engine import Engine

IGNORED = -100
"""The label of what has no loss."""

RECOMPUTED = partial(checkpoint, use_reentrant=False)


class SeguePreTrainedModel(PreTrainedModel):
    """`self.model` is ours, and makes its weights itself. What is carried over calls is named `state`.

    (Under the name `past_key_values`, `generate` would drop tokens of a stream that goes on.)
    """

    model: Any
    base_model_prefix = ""  # the whole is the base: all weights are behind "model."
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _is_stateful = True  # memory cannot be taken back by tokens, as assisted generation would need
    _engines: "list[tuple[Engine[Any], Watch]]"

    @classmethod
    def from_pretrained(cls, *given: Any, output_loading_info: bool = False, **settings: Any) -> Any:
        """As the library's, but weights that do not fit the config are an error and not a report."""
        model, info = super().from_pretrained(*given, output_loading_info=True, **settings)
        for problem, keys in (("lacks", info["missing_keys"]), ("also holds", info["unexpected_keys"])):
            if keys:
                name, more = min(keys), f" and {len(keys) - 1} more" if len(keys) > 1 else ""
                raise InputError(
                    f"the folder {problem} the tensor {name}{more}; does its config belong to it?"
                )
        return (model, info) if output_loading_info else model

    def train(self, mode: bool = True) -> Self:
        """As everywhere. Whoever switches may have changed weights in ways that nothing notices."""
        self.__dict__.pop("_engines", None)
        switched: Self = super().train(mode)
        return switched

    def _init_weights(self, module: nn.Module) -> None:
        """The constructors of our models have done it."""

    def engine(self) -> Engine[Any]:
        """The engine that reads with the present weights. It is kept, because making it takes time."""
        kept = self.__dict__.get("_engines", [])
        if not kept or kept[0][1].changed or kept[0][0].model.training:
            watch = Watch(self.model.parameters())
            self.__dict__["_engines"] = kept = [(self.model.frozen(), watch)]
        engine: Engine[Any] = kept[0][0]
        return engine

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_engines"}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _reorder_cache(self, state: Any, beams: Tensor) -> Any:
        return state.select(beams.cpu())

    def get_input_embeddings(self) -> nn.Module:
        vocabulary: nn.Module = self.model.vocabulary
        return vocabulary

    def set_input_embeddings(self, value: nn.Module) -> None:  # noqa: ARG002
        raise InputError("the vocabulary of a model of segue cannot be replaced")

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Module:
        raise InputError(
            "the vocabulary of a model of segue has a fixed size; train one with another tokenizer"
        )

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = RECOMPUTED,
        every_n_layers: int = 1,
    ) -> None:
        """Compute the layers' insides again in the backward pass, in place of keeping them."""
        layers = [module for module in self.modules() if isinstance(module, Block)]
        if enable and not layers:
            raise InputError(
                f"a {type(self.model).__name__} has no Transformer layers, whose insides could be computed again"
            )
        for number, layer in enumerate(layers):
            layer.__dict__.pop("forward", None)
            if enable and number % every_n_layers == 0:
                layer.forward = partial(gradient_checkpointing_func, layer.forward)  # type: ignore[method-assign]
        self.gradient_checkpointing = enable


def mean_loss(nats: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
    """The mean cross-entropy of the labels that are not ignored; `count` is their number in a whole batch of steps."""
    counted = labels != IGNORED
    total = nats.masked_fill(~counted, 0).sum()
    number = counted.sum().clamp(min=1) if count is None else count
    return total / number.to(total.device) if isinstance(number, Tensor) else total / number


def shown(hidden: Tensor, keep: int | Tensor) -> Tensor:
    """The hidden states (B, T, C) whose logits are asked for: all, the last `keep`, or those of an index."""
    if isinstance(keep, Tensor):
        return hidden[:, keep]
    return hidden[:, -keep:] if keep else hidden
