"""TensorFlow's checkpoints, written byte by byte: the authors' models compute the same here, and damage is named."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import field, masked, table, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from segue.config import Reach, Reading
from segue.errors import SegueError
from segue.interop.crc32c import ROW_WORDS, crc32c, masked_crc32c
from segue.interop.files import import_bundle
from segue.interop.sorted_table import table_items
from segue.interop.tensorflow import read_checkpoint

WIDTH, HEADS, HEAD_WIDTH, INNER, LAYERS = 12, 2, 5, 14, 2
VOCAB, CUTOFFS = 23, (7, 15)


def weights_of(
    *, divisor: int = 1, cutoffs: tuple[int, ...] = (), embedding: int = WIDTH, untied: bool = False, tied: bool = True,
    same: bool = True,
) -> dict[str, Tensor]:  # fmt: skip
    """Random tensors under the authors' names, in their shapes, as float64."""
    shapes: dict[str, tuple[int, ...]] = {}
    pairs = (LAYERS,) if untied else ()
    for name in ("r_w_bias", "r_r_bias"):
        shapes[name] = (*pairs, HEADS, HEAD_WIDTH)
    for layer in range(LAYERS):
        attention, feed = f"layer_{layer}/rel_attn", f"layer_{layer}/ff"
        inner = HEADS * HEAD_WIDTH
        shapes[f"{attention}/qkv/kernel"] = (WIDTH, 3 * inner)
        shapes[f"{attention}/r/kernel"] = (WIDTH, inner)
        shapes[f"{attention}/o/kernel"] = (inner, WIDTH)
        shapes |= {f"{feed}/layer_1/kernel": (WIDTH, INNER), f"{feed}/layer_1/bias": (INNER,)}
        shapes |= {f"{feed}/layer_2/kernel": (INNER, WIDTH), f"{feed}/layer_2/bias": (WIDTH,)}
        for part in (attention, feed):
            shapes |= {f"{part}/LayerNorm/gamma": (WIDTH,), f"{part}/LayerNorm/beta": (WIDTH,)}
    edges = (0, *cutoffs, VOCAB)
    widths = [embedding // divisor**cluster for cluster in range(len(cutoffs) + 1)]
    if divisor == 1:
        shapes["adaptive_embed/lookup_table"] = (VOCAB, embedding)
        if embedding != WIDTH:
            shapes["adaptive_embed/proj_W"] = (embedding, WIDTH)
    if not cutoffs:
        shapes["adaptive_softmax/bias"] = (VOCAB,)
    for cluster in range(len(cutoffs) + 1 if cutoffs else 0):
        size, into, out = (
            edges[cluster + 1] - edges[cluster],
            f"adaptive_embed/cutoff_{cluster}",
            f"adaptive_softmax/cutoff_{cluster}",
        )
        shapes[f"{out}/b"] = (size,)
        if divisor > 1:
            shapes[f"{into}/lookup_table"] = (size, widths[cluster])
            if same or widths[cluster] != WIDTH:
                shapes[f"{into}/proj_W"] = (widths[cluster], WIDTH)
        if (not tied or cluster == 0) and not ((divisor == 1 or not same) and widths[cluster] == WIDTH):
            shapes[f"{out}/proj"] = (widths[cluster], WIDTH)
    if cutoffs:
        shapes["adaptive_softmax/cutoff_0/cluster_W"] = (len(cutoffs), embedding)
        shapes["adaptive_softmax/cutoff_0/cluster_b"] = (len(cutoffs),)
    generator = torch.Generator().manual_seed(3)
    random = {
        name: 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    return {f"transformer/{name}": weight for name, weight in random.items()}


def their_nats(
    weights: dict[str, Tensor], tokens: Tensor, memory: list[Tensor], clamp: int, epsilon: float
) -> tuple[Tensor, list[Tensor]]:
    """Cross-entropy of each next token of one stream, and the next memory: the published formulas, query by query."""
    named = {name.removeprefix("transformer/"): weight for name, weight in weights.items()}
    hidden = _embedded(named, tokens[:-1])
    queries, held, kept = len(hidden), len(memory[0]), []
    for layer in range(LAYERS):
        both = torch.cat([memory[layer], hidden])
        kept.append(both[len(both) - held :])
        at = f"layer_{layer}/rel_attn"
        heads = (both @ named[f"{at}/qkv/kernel"]).view(len(both), 3, HEADS, HEAD_WIDTH)
        biases = [
            named[name] if named[name].dim() == 2 else named[name][layer] for name in ("r_w_bias", "r_r_bias")
        ]
        gathered = []
        for query in range(queries):
            seen = range(query, held + query + 1)  # the memory and itself
            distances = torch.tensor([min(held + query - key, clamp) for key in seen], dtype=torch.float64)
            angles = distances[:, None] / 10000 ** (torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
            rows = (torch.cat([angles.sin(), angles.cos()], 1) @ named[f"{at}/r/kernel"]).view(
                -1, HEADS, HEAD_WIDTH
            )
            asking = heads[held + query, 0]
            chosen = slice(seen.start, seen.stop)
            scores = ((asking + biases[0]) * heads[chosen, 1]).sum(-1) + ((asking + biases[1]) * rows).sum(-1)
            shares = (scores / math.sqrt(HEAD_WIDTH)).softmax(0)
            gathered.append((shares[..., None] * heads[chosen, 2]).sum(0).flatten())
        hidden = _normed(torch.stack(gathered) @ named[f"{at}/o/kernel"] + hidden, named, at, epsilon)
        at = f"layer_{layer}/ff"
        inner = (hidden @ named[f"{at}/layer_1/kernel"] + named[f"{at}/layer_1/bias"]).relu()
        fed = inner @ named[f"{at}/layer_2/kernel"] + named[f"{at}/layer_2/bias"]
        hidden = _normed(fed + hidden, named, at, epsilon)
    logprobs = _logprobs(named, hidden)
    return -logprobs.gather(1, tokens[1:, None]).squeeze(1), kept


def _normed(states: Tensor, named: dict[str, Tensor], at: str, epsilon: float) -> Tensor:
    centred = states - states.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + epsilon).sqrt()
    return scaled * named[f"{at}/LayerNorm/gamma"] + named[f"{at}/LayerNorm/beta"]


def _tables(named: dict[str, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """The table and projection of each cluster of the embedding."""
    whole = named.get("adaptive_embed/lookup_table")
    clusters = sum(name.endswith("/b") for name in named)
    if whole is None:
        places = [f"adaptive_embed/cutoff_{cluster}" for cluster in range(clusters)]
        return [(named[f"{place}/lookup_table"], named.get(f"{place}/proj_W")) for place in places]
    sizes = [len(named[f"adaptive_softmax/cutoff_{cluster}/b"]) for cluster in range(clusters)] or [VOCAB]
    return [(table, named.get("adaptive_embed/proj_W")) for table in whole.split(sizes)]


def _embedded(named: dict[str, Tensor], tokens: Tensor) -> Tensor:
    parts = [table if projection is None else table @ projection for table, projection in _tables(named)]
    return torch.cat(parts)[tokens] * math.sqrt(WIDTH)


def _logprobs(named: dict[str, Tensor], hidden: Tensor) -> Tensor:
    tables = _tables(named)
    if len(tables) == 1:
        table, projection = tables[0]
        seen = hidden if projection is None else hidden @ projection.T
        return (seen @ table.T + named["adaptive_softmax/bias"]).log_softmax(1)
    parts: list[Tensor] = []
    head = torch.empty(0)
    for cluster, (table, shared) in enumerate(tables):
        at = f"adaptive_softmax/cutoff_{cluster}"
        projection = named.get(f"{at}/proj", shared if cluster else None)
        seen = hidden if projection is None else hidden @ projection.T
        rows, bias = table, named[f"{at}/b"]
        if cluster == 0:
            rows, bias = (
                torch.cat([rows, named[f"{at}/cluster_W"]]),
                torch.cat([bias, named[f"{at}/cluster_b"]]),
            )
        part = (seen @ rows.T + bias).log_softmax(1)
        if cluster == 0:
            head, part = part, part[:, : len(table)]
        else:
            part = part + head[:, len(tables[0][0]) + cluster - 1, None]
        parts.append(part)
    return torch.cat(parts, 1)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow": {"embedding": 6},
    "untied biases": {"untied": True},
    "clusters": {"cutoffs": CUTOFFS},
    "clusters, narrow, tied": {"cutoffs": CUTOFFS, "embedding": 6},
    "clusters, narrow, untied": {"cutoffs": CUTOFFS, "embedding": 6, "tied": False},
    "wt103": {"cutoffs": CUTOFFS, "divisor": 3, "untied": True},
    "lm1b": {"cutoffs": CUTOFFS, "divisor": 3, "untied": True, "tied": False, "same": False},
}


@pytest.mark.parametrize("name", SHAPES)
def test_their_models_compute_here_what_they_compute_there(name: str, tmp_path: Path) -> None:
    weights = weights_of(**SHAPES[name])
    source = write_checkpoint(tmp_path / "model", weights, shards=3)
    config = tmp_path / "flags.json"
    config.write_text(json.dumps({"tgt_len": 4, "mem_len": 5, "clamp_len": 3, "same_length": True}))
    bundle = import_bundle(source.parent, config=config)
    assert bundle.reading == Reading(segment=4, reach=Reach(memory=5, clamp=3, span=6, initial="zeros"))
    tokens = torch.randint(0, VOCAB, (13,), generator=torch.Generator().manual_seed(1))
    memory = bundle.model.start(lanes=1, reach=bundle.reading.reach)
    for epsilon, limit in ((1e-5, 1e-9), (1e-12, 1e-3)):  # ours, and theirs
        ours, theirs = memory, [torch.zeros(5, WIDTH, dtype=torch.float64)] * LAYERS
        for first in range(0, 12, 4):
            segment = tokens[first : first + 5]
            hidden, ours = bundle.model(segment[None, :-1], ours)
            wanted, theirs = their_nats(weights, segment, theirs, 3, epsilon)
            assert_close(bundle.model.nats(hidden, segment[None, 1:])[0], wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_what_belongs_to_training_is_not_read(kind: torch.dtype, tmp_path: Path) -> None:
    weights = {name: weight.to(kind) for name, weight in weights_of().items()}
    slots = {f"{name}/{slot}": weight for name, weight in weights.items() for slot in ("Adam", "Adam_1")}
    counters = {
        "global_step": torch.tensor(7),
        "beta1_power": torch.tensor(0.5),
        "beta2_power": torch.tensor(0.5),
    }
    source = write_checkpoint(tmp_path / "model", {**weights, **slots, **counters})
    assert_close(read_checkpoint(source), weights, rtol=0, atol=0)


def test_of_several_checkpoints_the_newest_is_read(tmp_path: Path) -> None:
    old, new = weights_of(), weights_of(untied=True)
    write_checkpoint(tmp_path / "model", old, step=1)
    folder = write_checkpoint(tmp_path / "model", new, step=20).parent
    assert import_bundle(folder).model.config.biases == "per-layer"
    assert import_bundle(folder / "model.ckpt-1.index").model.config.biases == "shared"
    (folder / "checkpoint").unlink()
    with pytest.raises(SegueError, match="has several checkpoints .*name the .index file of one"):
        import_bundle(folder)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"n_layer": 3}, "the config says n_layer 3, and the tensors 2"),
        ({"d_head": 4}, "the config says d_head 4, and the tensors 5"),
        ({"cutoffs": [0, 8, 15, 23]}, r"cutoffs \(0, 8, 15, 23\), and the tensors \(0, 7, 15, 23\)"),
        ({"vocab_size": 24}, "vocab_size 24, and the tensors 23"),
        ({"untie_r": False}, "untie_r False, and the tensors True"),
        ({"proj_share_all_but_first": False}, "proj_share_all_but_first False, and the tensors True"),
        ({"div_val": 2}, "vocabulary.tables.1|lookup_table|shape|numbers were expected"),
        ({"mem_len": -1}, "mem_len should be greater than or equal to 0; found -1"),
    ],
)
def test_a_config_that_contradicts_the_tensors(flags: dict[str, Any], match: str, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "model", weights_of(**SHAPES["wt103"]))
    config = tmp_path / "flags.json"
    config.write_text(json.dumps(flags))
    with pytest.raises(SegueError, match=match):
        import_bundle(source, config=config)


def refused(source: Path, match: str) -> None:
    with pytest.raises(SegueError, match=match) as caught:
        import_bundle(source)
    assert "\n" not in str(caught.value)


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    weights = weights_of()
    lacking = {name: weight for name, weight in weights.items() if "layer_1/ff/layer_2/bias" not in name}
    refused(write_checkpoint(tmp_path / "a", lacking), "lack transformer/layer_1/ff/layer_2/bias")
    more = {**weights, "transformer/layer_9/gate/kernel": torch.ones(2, 2, dtype=torch.float64)}
    refused(write_checkpoint(tmp_path / "b", more), "also hold transformer/layer_9/gate/kernel")
    refused(
        write_checkpoint(tmp_path / "c", {"bert/pooler": torch.ones(2)}), "is missing; is it the authors' Tr"
    )
    gap = {name: weight for name, weight in weights.items() if "layer_0" not in name}
    refused(write_checkpoint(tmp_path / "d", gap), "layer_0/rel_attn/.* is missing")


def test_damage_is_named(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "model", weights_of(), shards=2)
    index, data = source.read_bytes(), source.with_name("model.ckpt-0.data-00001-of-00002")
    whole = data.read_bytes()
    data.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    refused(source, "the checksum of transformer/.* does not match; copy it again")
    data.write_bytes(whole[:-1])
    refused(source, "is cut off: transformer/.* ends at byte")
    data.unlink()
    refused(source, "data-00001-of-00002, which is missing beside it")
    data.write_bytes(whole)
    import_bundle(source)
    for place in range(0, len(index) - 48, 97):
        source.write_bytes(index[:place] + bytes([index[place] ^ 4]) + index[place + 1 :])
        refused(source, "checksum of its block|is damaged")
    for length in (0, 10, 47, len(index) - 1):
        source.write_bytes(index[:length])
        refused(source, "its end is missing")


def test_entries_that_make_no_sense(tmp_path: Path) -> None:
    weights = {"transformer/a": torch.ones(2, 3)}
    refused(write_checkpoint(tmp_path / "a", weights, extra=field(7, b"x")), "is stored in slices")
    refused(write_checkpoint(tmp_path / "b", weights, extra=field(5, 4)), r"has shape \(2, 3\) and 4 bytes")
    refused(write_checkpoint(tmp_path / "c", weights, extra=field(3, 4)), "is in shard 4, and there are 1")
    refused(write_checkpoint(tmp_path / "d", weights, extra=field(1, 7)), "has numbers of type 7")
    refused(write_checkpoint(tmp_path / "e", weights, extra=b"\x0b"), "a field of kind 3")
    source = write_checkpoint(tmp_path / "f", weights)
    source.write_bytes(table([(b"", field(1, 1) + field(2, 1))]))
    refused(source, "big-endian")
    source.write_bytes(table([(b"", field(1, 10**9))]))
    refused(source, "no sensible number of shards")
    source.write_bytes(table([(b"a", b"")]))
    refused(source, "has no header")


@given(st.binary(max_size=400))
def test_rubbish_is_refused_in_one_line(rubbish: bytes) -> None:
    footer = (b"\0\0" + rubbish)[:40].ljust(40, b"\1") + 0xDB4775248B80FB57.to_bytes(8, "little")
    with pytest.raises(SegueError) as caught:
        list(table_items(rubbish + footer, "x"))
    assert "\n" not in str(caught.value)


@given(
    st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=20)), unique_by=lambda pair: pair[0]),
    st.integers(1, 5),
)
def test_a_table_gives_back_what_it_was_made_of(pairs: list[tuple[bytes, bytes]], per_block: int) -> None:
    assert list(table_items(table(sorted(pairs), per_block=per_block), "x")) == sorted(pairs)


@pytest.mark.parametrize(
    "size", [0, 1, 3, 4, 9, 4 * ROW_WORDS - 1, 4 * ROW_WORDS, 4 * ROW_WORDS + 1, 100_003]
)
def test_the_checksum_is_the_textbooks(size: int) -> None:
    data = bytes(torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(size)).tolist())
    assert masked_crc32c(data) == masked(data)


def test_the_published_checksums() -> None:
    """The examples of RFC 3720."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283
