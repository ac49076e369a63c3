"""Hugging Face's TransfoXL (last in transformers 4.35), to and from a model of ours.

It starts with a memory of zeros that are attended to, and its cluster columns are in our order.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field
from torch import Tensor

from segue.config import Reach, Reading, Settings, XLConfig
from segue.errors import SourceError
from segue.interop.layout import (
    Entry,
    check_exportable,
    exported,
    imported,
    inverse_frequencies,
    shared_entries,
    tails_tied,
    unsaid,
)
from segue.nn.xl import TransformerXL


class TransfoXLConfig(Settings):
    """The keys of its config.json that matter; whatever else it holds is left alone."""

    model_config = ConfigDict(extra="ignore")

    model_type: Literal["transfo-xl"] = "transfo-xl"
    vocab_size: int
    n_layer: int
    n_head: int
    d_model: int
    d_head: int
    d_inner: int
    d_embed: int
    div_val: int = 1
    cutoffs: tuple[int, ...] = ()
    tie_word_embeddings: bool = True
    tie_projs: tuple[bool, ...] = (False,)
    pre_lnorm: bool = False
    attn_type: Literal[0] = 0
    untie_r: bool = True
    clamp_len: int = -1
    same_length: bool = True
    mem_len: int = Field(ge=0)
    sample_softmax: int = Field(-1, le=0)
    layer_norm_epsilon: Literal[1e-05] = 1e-05  # type: ignore[valid-type]
    dropout: float = 0.0
    dropatt: float = 0.0


def build_transfo_xl(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[TransformerXL, Reach]:
    """The model, in the weights' precision, and the reach that its config implies."""
    theirs = TransfoXLConfig(**config)
    shape = _shape(theirs)
    return imported(shape, _entries(shape), weights), _reach(theirs)


def reading(config: Mapping[str, Any]) -> Reading:
    return Reading(segment=config.get("tgt_len", 128), reach=_reach(TransfoXLConfig(**config)))


def export(model: TransformerXL, read: Reading) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Its weights, its config.json, and what could not be said in them."""
    ours, reach = model.config, read.reach
    check_exportable(ours)
    if ours.encoding != "xl":
        raise SourceError(
            f"Hugging Face's TransfoXL has the encoding 'xl' only; this model has {ours.encoding!r}"
        )
    theirs = TransfoXLConfig(
        vocab_size=ours.vocab,
        n_layer=ours.layers,
        n_head=ours.heads,
        d_model=ours.width,
        d_head=ours.head_width,
        d_inner=ours.inner,
        d_embed=ours.embedding,
        div_val=ours.divisor,
        cutoffs=ours.cutoffs,
        tie_word_embeddings=ours.tied,
        tie_projs=(False, *[ours.tied_projections] * (ours.clusters - 1)),
        pre_lnorm=ours.norm == "pre",
        untie_r=ours.biases == "per-layer",
        clamp_len=reach.clamp or -1,
        same_length=reach.span is not None and reach.span == reach.memory,
        mem_len=reach.memory,
        dropout=ours.dropout,
        dropatt=ours.attention_dropout,
    )
    weights = exported(dict(model.state_dict()), _entries(ours))
    weights["transformer.pos_emb.inv_freq"] = inverse_frequencies(ours, model.vocabulary.tables[0].dtype)
    said = {
        "architectures": ["TransfoXLLMHeadModel"],
        # its constructor knows this flag alone, and makes tie_projs of it
        "proj_share_all_but_first": ours.tied_projections,
        "tgt_len": read.segment,
        **theirs.model_dump(mode="json"),
    }
    return weights, said, unsaid(reach, initial="zeros")


def _entries(config: XLConfig) -> list[Entry]:
    entries = shared_entries(config, "transformer.", reversed_clusters=False)
    names = (("r_w_bias", "positions.content_bias"), ("r_r_bias", "positions.position_bias"))
    for theirs, ours in names:
        if config.biases == "shared":  # the model has the pair, and every layer names it again
            entries.append(Entry(f"transformer.{theirs}", (ours,), layer=0))
        for layer in range(config.layers):
            pair = 0 if config.biases == "shared" else layer
            entries.append(Entry(f"transformer.layers.{layer}.dec_attn.{theirs}", (ours,), layer=pair))
    return entries


def _shape(theirs: TransfoXLConfig) -> XLConfig:
    return XLConfig(
        vocab=theirs.vocab_size,
        width=theirs.d_model,
        embedding=theirs.d_embed,
        cutoffs=theirs.cutoffs,
        divisor=theirs.div_val,
        tied=theirs.tie_word_embeddings,
        tied_projections=tails_tied(theirs.tie_projs, len(theirs.cutoffs) + 1),
        layers=theirs.n_layer,
        heads=theirs.n_head,
        head_width=theirs.d_head,
        inner=theirs.d_inner,
        norm="pre" if theirs.pre_lnorm else "post",
        biases="per-layer" if theirs.untie_r else "shared",
        dropout=theirs.dropout,
        attention_dropout=theirs.dropatt,
    )


def _reach(theirs: TransfoXLConfig) -> Reach:
    return Reach(
        memory=theirs.mem_len,
        clamp=theirs.clamp_len if theirs.clamp_len > 0 else None,
        span=max(1, theirs.mem_len) if theirs.same_length else None,
        initial="zeros",
    )
