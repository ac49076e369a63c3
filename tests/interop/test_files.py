"""Import and export: exact round trips, both layouts, and nothing is ever unpickled."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from segue.checkpoint import Bundle
from segue.config import Reach, Reading
from segue.errors import SegueError
from segue.interop.files import export_bundle, import_bundle
from segue.interop.vocabulary import read_vocabulary
from support import build, shape
from test_references import AUTHORS, FOLDER, HUGGING_FACE, recording


def their_folder(path: Path, name: str, *, pickled: bool = False) -> Path:
    """A reference run as the folder that a user would have."""
    _, weights, config = recording(name)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(weights, path / "pytorch_model.bin")
    else:
        save_file(weights, path / "model.safetensors")
    return path


@pytest.mark.parametrize("name", [*AUTHORS, *HUGGING_FACE])
def test_a_round_trip_is_exact(name: str, tmp_path: Path) -> None:
    _, weights, config = recording(name)
    layout = "huggingface" if name in HUGGING_FACE else "reference"
    bundle = import_bundle(FOLDER / f"{name}.safetensors")
    assert export_bundle(bundle, tmp_path / "out", layout) == []
    assert_close(load_file(tmp_path / "out" / "model.safetensors"), weights, rtol=0, atol=0)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    # null widths are filled in, flags without effect are left out, and the class is named
    told = {"tie_projs", "d_embed", "architectures"}
    same = written.keys() & config.keys() - told
    assert {key: written[key] for key in same} == {key: config[key] for key in same}
    again = import_bundle(tmp_path / "out")
    assert again.reading == bundle.reading
    assert again.model.config == bundle.model.config
    assert_close(dict(again.model.state_dict()), dict(bundle.model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_hugging_face_folder(pickled: bool, tmp_path: Path) -> None:
    bundle = import_bundle(their_folder(tmp_path / "hf", HUGGING_FACE[0], pickled=pickled))
    assert bundle.reading.reach == Reach(memory=10, clamp=7, span=10, initial="zeros")
    _, weights, _ = recording(HUGGING_FACE[0])
    assert_close(
        bundle.model.vocabulary.tables[0].detach(), weights["transformer.word_emb.emb_layers.0.weight"]
    )


def test_the_authors_weights_with_a_config_given(tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "authors", "xl-clamp-samelength")
    config = (folder / "config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(SegueError, match="no config at .*config.json; name it with --config"):
        import_bundle(folder / "model.safetensors")
    bundle = import_bundle(folder / "model.safetensors", config=config)
    assert bundle.reading == Reading(segment=7, reach=Reach(memory=23, clamp=9, span=23))


def test_a_model_goes_through_both_layouts(tmp_path: Path) -> None:
    """Settings that a layout cannot express are noted, and the weights still agree."""
    reach = Reach(memory=4, span=5)
    bundle = Bundle(build(shape(cutoffs=(4, 9), divisor=2)), Reading(segment=5, reach=reach))
    notes = export_bundle(bundle, tmp_path / "hf", "huggingface")
    assert [note.split(" is not written")[0] for note in notes] == ["span 5", "initial='empty'"]
    assert len(export_bundle(bundle, tmp_path / "authors", "reference")) == 1
    for folder in ("hf", "authors"):
        weights = dict(import_bundle(tmp_path / folder).model.state_dict())
        assert_close(weights, dict(bundle.model.state_dict()), rtol=0, atol=0)
    with pytest.raises(SegueError, match="exists; nothing was overwritten"):
        export_bundle(bundle, tmp_path / "hf", "huggingface")


@pytest.mark.parametrize(
    ("changes", "layout", "match"),
    [
        ({"encoding": "none"}, "reference", "no encoding 'none'"),
        ({"biases": "per-layer"}, "reference", "try --layout huggingface"),
        (
            {"encoding": "learned"},
            "reference",
            "no memory with absolute positions; this reading has memory 4",
        ),
        (
            {"encoding": "shaw", "biases": "per-layer", "max_distance": 3},
            "reference",
            "it has 3, and memory is 4",
        ),
        ({"encoding": "shaw", "biases": "per-layer"}, "huggingface", "only the encoding 'xl'"),
        (
            {"cutoffs": (4,), "divisor": 2, "head_projection": False},
            "reference",
            "head cluster has no projection",
        ),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(
    changes: dict[str, Any], layout: str, match: str, tmp_path: Path
) -> None:
    bundle = Bundle(build(shape(**changes)), Reading(segment=5, reach=Reach(memory=4)))
    with pytest.raises(SegueError, match=match):
        export_bundle(bundle, tmp_path / "out", layout)
    assert list(tmp_path.iterdir()) == []


def test_positions_that_were_learned_are_no_sinusoids(tmp_path: Path) -> None:
    bundle = Bundle(build(shape("learned")), Reading(segment=5, reach=Reach(memory=0, positions="restart")))
    with pytest.raises(SegueError, match="of this model was learned"):
        export_bundle(bundle, tmp_path / "out", "reference")


class Bomb:
    """A pickle that runs code when it is opened."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (eval, (f"open({str(self.target)!r}, 'w')",))


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    sign = tmp_path / "exploded"
    folder = their_folder(tmp_path / "hf", HUGGING_FACE[0], pickled=True)
    torch.save({"weight": Bomb(sign)}, folder / "pytorch_model.bin")
    vocabulary = tmp_path / "vocab.bin"
    vocabulary.write_bytes(pickle.dumps(Bomb(sign)))
    module = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2), module)
    (tmp_path / "config.json").write_text("{}")
    text = tmp_path / "vocab.txt"
    text.write_bytes(pickle.dumps(Bomb(sign)))
    for call in (
        lambda: import_bundle(folder),
        lambda: import_bundle(module),
        lambda: read_vocabulary(vocabulary, 3),
        lambda: read_vocabulary(text, 3),
    ):
        with pytest.raises(SegueError, match="safetensors.torch.save_file|one symbol per line") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not sign.exists()


def test_a_vocabulary_is_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("<eos>\nthe 1234\n<unk>\n\nsea\n", encoding="utf-8")
    tokenizer = read_vocabulary(path, 4)
    assert tokenizer.encode(b"the sea\nthe ship\n") == [1, 3, 0, 1, 2, 0]
    with pytest.raises(SegueError, match="has 4 symbols and the model has 5"):
        read_vocabulary(path, 5)
    path.write_text("a\nb\na\n")
    with pytest.raises(SegueError, match="names 'a' twice"):
        read_vocabulary(path, 3)
    with pytest.raises(SegueError, match="could not be read: No such file"):
        read_vocabulary(tmp_path / "none.txt", 3)


def changed(name: str, **changes: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    _, weights, config = recording(name)
    return weights, {**config, **changes}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"attn_type": 2}, "cannot distinguish memory from segment; only mem_len 0"),
        ({"n_layer": 4}, "the weights lack layers.3"),
        ({"n_layer": 2}, "the weights also hold layers.2"),
        ({"d_inner": 49}, "does the config belong to it"),
        ({"ext_len": 3}, "ext_len should be 0; found 3"),
        ({"attn_type": 9}, "attn_type should be 0, 1, 2 or 3; found 9"),
        ({"tie_projs": [True, True], "cutoffs": [20]}, "ties the head"),
        ({"n_layer": "many"}, "n_layer should be a valid integer"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    weights, config = changed("xl-postnorm", **changes)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SegueError, match=match):
        import_bundle(tmp_path)


@pytest.mark.parametrize("twin", ["crit.out_layers.0.weight", "transformer.word_emb.emb_layers.0.weight"])
def test_a_tied_weight_may_be_stored_once(twin: str, tmp_path: Path) -> None:
    """As transformers' own save_pretrained does."""
    weights, config = changed(HUGGING_FACE[0])
    whole = import_bundle(FOLDER / f"{HUGGING_FACE[0]}.safetensors")
    del weights[twin]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    restored = import_bundle(tmp_path).model.state_dict()
    assert_close(dict(restored), dict(whole.model.state_dict()), rtol=0, atol=0)


def test_weights_that_should_be_tied_and_are_not(tmp_path: Path) -> None:
    weights, config = changed("xl-postnorm")
    weights["crit.out_layers.0.weight"] = weights["crit.out_layers.0.weight"] + 1
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SegueError, match="should be tied, but differs"):
        import_bundle(tmp_path)


def test_sources_that_are_none(tmp_path: Path) -> None:
    cases = {
        "nothing at": tmp_path / "missing",
        "neither model.safetensors nor pytorch_model.bin": tmp_path,
    }
    for match, path in cases.items():
        with pytest.raises(SegueError, match=match):
            import_bundle(path)
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    for text, match in (("{}", "neither the authors'"), ("[]", "should be an object"), ("{", "is no JSON")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(SegueError, match=match):
            import_bundle(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(SegueError, match="is not a safetensors file"):
        import_bundle(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (HUGGING_FACE[0], {"n_layer": 10**9}),
        (HUGGING_FACE[0], {"d_inner": 2**40}),
        (AUTHORS[0], {"n_head": 2**40, "d_head": 2**40}),
        (AUTHORS[0], {"n_token": 2**62}),
        ("absolute-sinusoidal", {"tgt_len": 10**12}),
    ],
)
def test_a_config_cannot_ask_for_more_than_the_weights_are(
    name: str, changes: dict[str, int], tmp_path: Path
) -> None:
    folder = their_folder(tmp_path / "theirs", name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(SegueError):
        import_bundle(folder)


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_weights_are_real_numbers(kind: torch.dtype, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "theirs", AUTHORS[0])
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name].to(kind)}, folder / "model.safetensors")
    with pytest.raises(SegueError, match="weights should be real numbers"):
        import_bundle(folder)


@pytest.mark.parametrize("cut", [0, 1, 3, 7, 100, 1000, -1])
@pytest.mark.parametrize("new", [True, False])
def test_a_damaged_file_of_tensors_is_told_in_one_line(new: bool, cut: int, tmp_path: Path) -> None:
    folder = their_folder(tmp_path / "theirs", HUGGING_FACE[0], pickled=True)
    weights = {"a": torch.ones(300)}
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    whole = (folder / "pytorch_model.bin").read_bytes()
    for damaged in (
        whole[:cut],
        whole[: len(whole) // 2] + b"\x80\x04.0q" + whole[len(whole) // 2 :],
        b"\x80\x04N.",
    ):
        (folder / "pytorch_model.bin").write_bytes(damaged)
        with pytest.raises(SegueError, match="is ever unpickled|state dict|the weights"):
            import_bundle(folder)
