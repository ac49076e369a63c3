"""Conversion from and to Hugging Face's TransfoXL (last in transformers 4.35).

Its memory starts as zeros that are attended to. Its cluster columns have the same order as ours.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from segue.config import Reach, Reading, XLConfig
from segue.errors import SourceError
from segue.interop.layout import Entry, exported, imported, inverse_frequencies, shared_entries
from segue.interop.settings import ForeignConfig, foreign_values, lost_settings, reach_values, shape_values
from segue.nn.xl import TransformerXL


class TransfoXLConfig(ForeignConfig):
    """The keys of its config.json."""

    model_type: Literal["transfo-xl"] = "transfo-xl"
    vocab_size: int
    tie_word_embeddings: bool = True
    attn_type: Literal[0] = 0
    untie_r: bool = True
    same_length: bool = True
    tgt_len: int = Field(128, gt=0)
    layer_norm_epsilon: float = Field(1e-5, ge=1e-5, le=1e-5)  # ours too


def build_transfo_xl(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[TransformerXL, Reach]:
    """The model, in the dtype of its weights, and the reach of its config."""
    theirs = TransfoXLConfig(**config)
    shape = _shape(theirs)
    return imported(shape, _entries, weights), _reach(theirs)


def reading(config: Mapping[str, Any]) -> Reading:
    theirs = TransfoXLConfig(**config)
    return Reading(segment=theirs.tgt_len, reach=_reach(theirs))


def export(model: TransformerXL, read: Reading) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Its weights, its config.json, and notes on settings that these cannot express."""
    ours = model.config
    if ours.encoding != "xl":
        raise SourceError(
            f"Hugging Face's TransfoXL has only the encoding 'xl'; this model has {ours.encoding!r}"
        )
    theirs = TransfoXLConfig(
        **foreign_values(ours, read.reach),
        vocab_size=ours.vocab,
        tie_word_embeddings=ours.tied,
        untie_r=ours.biases == "per-layer",
        tgt_len=read.segment,
    )
    weights = exported(dict(model.state_dict()), _entries(ours))
    weights["transformer.pos_emb.inv_freq"] = inverse_frequencies(ours, model.vocabulary.tables[0].dtype)
    written = {
        "architectures": ["TransfoXLLMHeadModel"],
        # its constructor takes this flag only, and derives tie_projs from it
        "proj_share_all_but_first": ours.tied_projections,
        **theirs.model_dump(mode="json"),
    }
    return weights, written, lost_settings(read.reach, initial="zeros")


def _entries(config: XLConfig) -> list[Entry]:
    entries = shared_entries(config, "transformer.", reversed_clusters=False)
    names = (("r_w_bias", "positions.content_bias"), ("r_r_bias", "positions.position_bias"))
    for theirs, ours in names:
        if config.biases == "shared":  # stored in the model, and again under every layer's name
            entries.append(Entry(f"transformer.{theirs}", (ours,), layer=0))
        for layer in range(config.layers):
            pair = 0 if config.biases == "shared" else layer
            entries.append(Entry(f"transformer.layers.{layer}.dec_attn.{theirs}", (ours,), layer=pair))
    return entries


def _shape(theirs: TransfoXLConfig) -> XLConfig:
    return XLConfig(
        **shape_values(theirs),
        vocab=theirs.vocab_size,
        tied=theirs.tie_word_embeddings,
        biases="per-layer" if theirs.untie_r else "shared",
    )


def _reach(theirs: TransfoXLConfig) -> Reach:
    return Reach(**reach_values(theirs), initial="zeros")
