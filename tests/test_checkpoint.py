"""Bundles: what is saved comes back; what is damaged is named; a crash leaves the old one whole."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import segue
from runs import make_corpus, small_recipe
from segue import checkpoint
from segue.checkpoint import Bundle, average, checkpoints, load
from segue.checksums import file_checksum
from segue.config import Reach, Reading, XLConfig
from segue.errors import BundleError, SegueError
from segue.text.tokenizer import word_tokenizer
from support import build, shape, some_tokens

READING = Reading(segment=5, reach=Reach(memory=4, clamp=3, span=4, initial="zeros"))


def bundle(seed: int = 0, config: XLConfig | None = None) -> Bundle:
    return Bundle(build(config or shape(cutoffs=(4, 9), divisor=2), seed), READING)


def reseal(folder: Path) -> None:
    """Make the checksums right again, as someone who edits a bundle by hand would."""
    names = [file for file in sorted(folder.iterdir()) if file.name != "SHA256SUMS"]
    (folder / "SHA256SUMS").write_text("".join(f"{file_checksum(file)}  {file.name}\n" for file in names))


def test_a_bundle_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = Bundle(build(shape(vocab=3)), READING, word_tokenizer(["<eos>", "<unk>", "go"]))
    saved.save(tmp_path / "deep" / "model")
    loaded = segue.load(str(tmp_path / "deep" / "model"))
    assert loaded.reading == READING
    assert loaded.model.config == saved.model.config
    assert not loaded.model.training
    assert_close(dict(loaded.model.state_dict()), dict(saved.model.state_dict()), rtol=0, atol=0)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode(b"go on\ngo") == [2, 1, 0, 2]
    assert all(weight.requires_grad for weight in loaded.model.parameters())


def test_checksums_are_those_of_coreutils(tmp_path: Path) -> None:
    bundle().save(tmp_path / "model")
    lines = (tmp_path / "model" / "SHA256SUMS").read_text().splitlines()
    assert [line[64:] for line in lines] == ["  config.json", "  model.safetensors"]


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    bundle(1).save(tmp_path / "model")
    bundle(2).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    loaded = segue.load(tmp_path / "model").model.state_dict()
    assert_close(dict(loaded), dict(bundle(2).model.state_dict()), rtol=0, atol=0)
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "model").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_crash_while_saving_leaves_a_whole_bundle(
    crash_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at the n-th step that touches the disk: nothing after it happens, not even tidying up."""
    bundle(1).save(tmp_path / "model")
    steps = 0

    class Crash(BaseException):
        pass

    def counted(real: object) -> object:
        def step(*values: object, **named: object) -> object:
            nonlocal steps
            steps += 1
            if steps >= crash_at:
                raise Crash
            assert callable(real)
            return real(*values, **named)

        return step

    with monkeypatch.context() as patch:
        for place, name in (
            (Path, "rename"),
            (os, "fsync"),
            (checkpoint.files, "save_file"),
            (shutil, "rmtree"),
        ):
            patch.setattr(place, name, counted(getattr(place, name)))
        with pytest.raises(Crash):
            bundle(2).save(tmp_path / "model")
    loaded = dict(segue.load(tmp_path / "model").model.state_dict())
    old, new = (dict(bundle(seed).model.state_dict()) for seed in (1, 2))
    assert any(all(torch.equal(loaded[key], whole[key]) for key in whole) for whole in (old, new))
    bundle(3).save(tmp_path / "model")  # and the next save works
    segue.load(tmp_path / "model")


def test_a_full_disk_says_so_and_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle(1).save(tmp_path / "model")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.files, "save_file", full)
        with pytest.raises(SegueError, match="No space left on device; what was there is unchanged"):
            bundle(2).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert_close(dict(segue.load(tmp_path / "model").model.state_dict()), dict(bundle(1).model.state_dict()))


def test_a_folder_that_is_no_bundle_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(
        SegueError, match="is not a bundle of segue, or holds more than that; nothing was overwritten"
    ):
        bundle().save(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model"
    weights, config = path / "model.safetensors", path / "config.json"

    def refused(match: str) -> None:
        with pytest.raises(SegueError, match=match) as caught:
            segue.load(path)
        assert "\n" not in str(caught.value)
        shutil.rmtree(path, ignore_errors=True)
        bundle().save(path)

    refused("there is no bundle at")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    refused("model.safetensors is not the file that was saved")
    weights.unlink()
    refused("lacks model.safetensors")
    (path / "SHA256SUMS").unlink()
    refused("has no SHA256SUMS")
    config.unlink()
    refused("is no bundle: it has no config.json")

    def edit(change: object) -> None:
        tensors = load_file(weights)
        assert callable(change)
        change(tensors)
        save_file(tensors, weights)
        reseal(path)

    edit(lambda tensors: tensors.pop("blocks.0.attention.out.weight"))
    refused("lacks the tensor blocks.0.attention.out.weight")
    edit(lambda tensors: tensors.update(surplus=torch.ones(1)))
    refused("holds a tensor surplus")
    edit(lambda tensors: tensors.update({"vocabulary.cluster_bias": torch.ones(7)}))
    refused(r"vocabulary.cluster_bias has shape \(7,\); its config asks for \(2,\)")
    weights.write_bytes(b"rubbish")
    reseal(path)
    refused("is no safetensors file")
    config.write_text(json.dumps({**json.loads(config.read_text()), "modle": 1}))
    reseal(path)
    refused("BundleConfig has no 'modle'; did you mean 'model'?")
    config.write_text("{")
    reseal(path)
    refused("config.json is no JSON")
    config.write_text("[]")
    reseal(path)
    refused("should hold an object; found list")
    segue.load(path)


def test_a_loaded_model_reads_like_the_saved_one(tmp_path: Path) -> None:
    saved = bundle()
    saved.save(tmp_path / "model")
    loaded = segue.load(tmp_path / "model")
    tokens = some_tokens(1, 6)
    expected, _ = saved.model(tokens, saved.model.start(reach=READING.reach))
    hidden, _ = loaded.model(tokens, loaded.model.start(reach=loaded.reading.reach))
    assert_close(hidden, expected, rtol=0, atol=0)


def test_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)
    run = segue.train(small_recipe(steps=6, save_every=1, keep=4), corpus, tmp_path / "run")
    kept = [load(folder).model.state_dict() for folder in checkpoints(run)]
    averaged = average(run, 3).model.state_dict()
    for name, weight in averaged.items():
        wanted = torch.stack([weights[name].double() for weights in kept[-3:]]).mean(dim=0)
        assert_close(weight, wanted.float(), rtol=0, atol=1e-7)
    with pytest.raises(
        BundleError, match="keeps 4 of its newest checkpoints and 5 were asked for; train with train.keep=5"
    ):
        average(run, 5)


def hugging_face_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "transfo-xl"}')
    (folder / "model.safetensors").write_bytes(b"years of work")


def site_with_a_thesis(folder: Path) -> None:
    (folder / ".git").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "thesis.tex").write_text("mine")


def bundle_with_notes(folder: Path) -> None:
    bundle().save(folder)
    (folder / "notes.txt").write_text("mine")


def bundle_with_a_folder(folder: Path) -> None:
    bundle().save(folder)
    (folder / "tokenizer.json").mkdir()


def somebodys_checksums(folder: Path) -> None:
    hugging_face_folder(folder)
    reseal(folder)


STRANGERS = [
    hugging_face_folder,
    site_with_a_thesis,
    bundle_with_notes,
    bundle_with_a_folder,
    somebodys_checksums,
]


@pytest.mark.parametrize("make", STRANGERS, ids=lambda make: make.__name__)
def test_only_a_bundle_that_holds_nothing_else_is_replaced(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "precious")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(SegueError, match="nothing was overwritten: choose another name or remove it"):
        bundle().save(tmp_path / "precious")
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
