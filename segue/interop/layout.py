"""Weight names in the authors' code and in Hugging Face's port of it, and ours.

The two foreign layouts are nearly the same. An `Entry` maps one of their tensors to pieces of ours; import and export
use the same entries in opposite directions, so a round trip is exact by construction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.config import XLConfig
from segue.errors import SourceError
from segue.nn.fit import check_kinds, check_size, too_large
from segue.nn.xl import TransformerXL


@dataclass(frozen=True)
class Entry:
    """One of their tensors: our pieces concatenated along the first dimension, perhaps flipped."""

    theirs: str
    ours: tuple[str, ...]
    layer: int | None = None  # our piece is row `layer` of a tensor for all layers
    flip: int | None = None  # their order along this dimension is the reverse of ours
    shape: tuple[int, ...] | None = None  # their shape, if it differs from ours


def imported(
    config: XLConfig, entries: Callable[[XLConfig], Sequence[Entry]], weights: Mapping[str, Tensor]
) -> TransformerXL:
    """A model of this shape with their weights, in the dtype of the weights."""
    check_size(config, weights, "the weights", SourceError)
    present = _present(entries(config), weights)
    check_kinds({entry.theirs: weights[entry.theirs] for entry in present}, "the weights", SourceError)
    dtype = weights[present[0].theirs].dtype
    with torch.device("meta"), too_large("the weights", SourceError):
        model = TransformerXL(config).to(dtype)
    meta = model.state_dict()
    for entry in present:
        pieces = [meta[name] if entry.layer is None else meta[name][entry.layer] for name in entry.ours]
        _check_size(entry.theirs, weights[entry.theirs], sum(piece.numel() for piece in pieces))
    tensors = {name: torch.empty_like(tensor, device="cpu") for name, tensor in meta.items()}
    filled: set[tuple[str, int | None]] = set()
    for entry in present:
        source = weights[entry.theirs]
        source = source.flip(entry.flip) if entry.flip is not None else source
        pieces = [tensors[name] if entry.layer is None else tensors[name][entry.layer] for name in entry.ours]
        parts = source.reshape(-1).split([piece.numel() for piece in pieces])
        for name, piece, part in zip(entry.ours, pieces, parts, strict=True):
            if (name, entry.layer) in filled and not torch.equal(piece, part.view_as(piece)):
                raise SourceError(
                    f"{entry.theirs!r} should be tied, but differs from the weight it is tied to; check tie_weight"
                )
            piece.copy_(part.view_as(piece))
            filled.add((name, entry.layer))
    model.load_state_dict(tensors, assign=True)
    return model


def exported(tensors: Mapping[str, Tensor], entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Our tensors (weights, or gradients of the same shapes) under their names."""
    return {entry.theirs: _exported(tensors, entry) for entry in entries}


def _exported(tensors: Mapping[str, Tensor], entry: Entry) -> Tensor:
    pieces = [tensors[name] if entry.layer is None else tensors[name][entry.layer] for name in entry.ours]
    joined = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    joined = joined if entry.shape is None else joined.reshape(entry.shape)
    # A copy for every name: safetensors refuses tensors that share memory.
    return joined.flip(entry.flip) if entry.flip is not None else joined.contiguous().clone()


def shared_entries(config: XLConfig, prefix: str, *, reversed_clusters: bool) -> list[Entry]:
    """The entries that both layouts have; `prefix` is before all names except those of the softmax."""
    entries = []
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"{prefix}layers.{layer}"
        query, key_value = f"{ours}.attention.query.weight", f"{ours}.attention.key_value.weight"
        if config.position_encoding.relative:
            entries.append(Entry(f"{theirs}.dec_attn.qkv_net.weight", (query, key_value)))
        else:
            entries.append(Entry(f"{theirs}.dec_attn.q_net.weight", (query,)))
            entries.append(Entry(f"{theirs}.dec_attn.kv_net.weight", (key_value,)))
        names = {"dec_attn.o_net.weight": "attention.out.weight"}
        for kind in ("weight", "bias"):
            names[f"dec_attn.layer_norm.{kind}"] = f"attention_norm.{kind}"
            names[f"pos_ff.CoreNet.0.{kind}"] = f"feed_forward.inner.{kind}"
            names[f"pos_ff.CoreNet.3.{kind}"] = f"feed_forward.outer.{kind}"
            names[f"pos_ff.layer_norm.{kind}"] = f"feed_forward_norm.{kind}"
        entries += [Entry(f"{theirs}.{name}", (f"{ours}.{own}",)) for name, own in names.items()]
        if config.encoding == "xl":
            entries.append(
                Entry(f"{theirs}.dec_attn.r_net.weight", (f"positions.projections.{layer}.weight",))
            )
    return entries + _vocabulary_entries(config, prefix, reversed_clusters)


def _vocabulary_entries(config: XLConfig, prefix: str, reversed_clusters: bool) -> list[Entry]:
    entries = []
    for table in range(1 if config.divisor == 1 else config.clusters):
        ours = f"vocabulary.tables.{table}"
        out = ours if config.tied else f"vocabulary.out_tables.{table}"
        entries.append(Entry(f"{prefix}word_emb.emb_layers.{table}.weight", (ours,)))
        entries.append(Entry(f"crit.out_layers.{table}.weight", (out,)))
        entries.append(Entry(f"crit.out_layers.{table}.bias", (f"vocabulary.biases.{table}",)))
        if config.projected(table):
            entries.append(Entry(f"{prefix}word_emb.emb_projs.{table}", (f"vocabulary.projections.{table}",)))
    for cluster in range(config.clusters):
        if not config.projected(cluster):
            continue
        tied = cluster > 0 and config.tied_projections
        source = 0 if tied and config.divisor == 1 else cluster
        owner = "projections" if tied else "out_projections"
        entries.append(Entry(f"crit.out_projs.{cluster}", (f"vocabulary.{owner}.{source}",)))
    if config.clusters > 1:
        flip = 0 if reversed_clusters else None
        entries.append(Entry("crit.cluster_weight", ("vocabulary.cluster_table",), flip=flip))
        entries.append(Entry("crit.cluster_bias", ("vocabulary.cluster_bias",), flip=flip))
    return entries


def inverse_frequencies(config: XLConfig, dtype: torch.dtype) -> Tensor:
    """The buffer `pos_emb.inv_freq`, which the code of both layouts expects among the weights."""
    steps = torch.arange(0.0, config.width, 2.0, dtype=torch.promote_types(dtype, torch.float32))
    return (1 / (10000 ** (steps / config.width))).to(dtype)


def _present(entries: Sequence[Entry], weights: Mapping[str, Tensor]) -> list[Entry]:
    """The entries whose tensors the file has. A tied weight may be stored under only one of its names."""
    present = [entry for entry in entries if entry.theirs in weights]
    given = {(name, entry.layer) for entry in present for name in entry.ours}
    missing = [
        entry.theirs
        for entry in entries
        if entry.theirs not in weights and not given.issuperset((name, entry.layer) for name in entry.ours)
    ]
    known = {entry.theirs for entry in entries}
    unexpected = [name for name in weights if name not in known and not name.endswith("pos_emb.inv_freq")]
    for problem, names in (("lack", missing), ("also hold", unexpected)):
        if names:
            first = ", ".join(sorted(names)[:3])
            raise SourceError(
                f"the weights {problem} {first}{' and more' if len(names) > 3 else ''}; "
                "does the config belong to them?"
            )
    return present


def _check_size(name: str, source: Tensor, expected: int) -> None:
    if source.numel() != expected:
        raise SourceError(
            f"{name} has shape {tuple(source.shape)}; {expected} numbers were expected; does the config belong to it?"
        )
