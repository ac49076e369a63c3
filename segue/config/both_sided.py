"""How an encoder's self-attention, which looks to both sides, is made cheaper than all pairs of tokens."""

from typing import ClassVar, Literal, Self

from pydantic import NonNegativeInt, model_validator

from segue.config.layers import LayersConfig


class BothSidedConfig(LayersConfig):
    """The self-attention of an encoder: to all tokens, in a window, or of low rank."""

    both_sided: ClassVar[bool] = True

    attention: Literal["full", "linformer", "nystrom"] = "full"
    window: NonNegativeInt = 0  # tokens that each sees, half of them on each side (Longformer's w); 0: all
    global_tokens: NonNegativeInt = 0  # with a window: the first tokens, which see all and are seen by all
    rank: NonNegativeInt = 0  # of `linformer`: mixtures of all keys; of `nystrom`: landmarks
    share: Literal["none", "heads", "key-value", "layers"] = "layers"  # of `linformer`: who shares E and F

    @model_validator(mode="after")
    def _cheaper_in_one_way(self) -> Self:
        if self.window % 2:
            raise ValueError(
                f"window counts both sides, so it is even; found {self.window}: use {self.window + 1}"
            )
        if self.global_tokens and not self.window:
            raise ValueError("global_tokens need a window: without one every token sees all")
        low_rank = self.attention != "full"
        if low_rank and self.window:
            raise ValueError(f"attention {self.attention!r} has no window; use one of the two")
        if low_rank != (self.rank > 0):
            needs = "a rank of 1 or more" if low_rank else "no rank"
            raise ValueError(f"attention {self.attention!r} needs {needs}; found rank={self.rank}")
        if self.attention != "linformer" and self.share != "layers":
            raise ValueError(f"share {self.share!r} is linformer's; found attention={self.attention!r}")
        if self.attention == "nystrom" and self.attention_dropout:
            raise ValueError(
                "nystrom has no weights of single tokens to drop; use dropout, not attention_dropout"
            )
        return self

    def check_rank(self, longest: int, name: str) -> None:
        """Refuse E and F that have more rows than columns: full attention is cheaper."""
        if self.attention == "linformer" and self.rank > longest:
            raise ValueError(f"rank {self.rank} exceeds {name} {longest}, where full attention is cheaper")
