"""Checkpoints and bundles are verified before anything of them is used, and nothing else is."""

import json
from pathlib import Path

import pytest

import segue
from runs import small_recipe
from segue.checkpoint import (
    CHECKSUMS,
    CONFIG,
    WEIGHTS,
    Bundle,
    best_checkpoint,
    checkpoints,
    seal,
    translates,
)
from segue.config import Reach, Reading, XLConfig
from segue.errors import BundleError
from segue.nn.xl import TransformerXL
from segue.text.tokenizer import ByteTokenizer


def bundle(folder: Path) -> Path:
    model = TransformerXL(XLConfig(vocab=256, width=4, layers=1, heads=1, feedforward=4))
    Bundle(model, Reading(segment=4, reach=Reach(memory=4)), ByteTokenizer()).save(folder)
    return folder


@pytest.mark.parametrize("name", ["training (1).safetensors", "lanes-00000.safetensors", "tokenizer.json"])
def test_a_file_that_was_not_saved_is_not_read(name: str, tmp_path: Path) -> None:
    folder = bundle(tmp_path / "model")
    lines = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
    (folder / CHECKSUMS).write_text("".join(line for line in lines if name not in line))
    (folder / name).write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(BundleError, match="not among the files that were saved"):
        segue.load(folder)
    (folder / name).rename(folder / "README.md")  # which nobody reads


def test_the_kind_of_a_bundle_is_known_without_its_weights(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "model")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    assert not translates(folder)
    with pytest.raises(BundleError, match=r"model.safetensors is not the file that was saved"):
        segue.load(folder)
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text.replace('"xl"', '"seq2seq"'))
    with pytest.raises(BundleError, match=r"config.json is not the file that was saved"):
        translates(folder)


def test_only_files_of_the_bundle_are_verified(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "model")
    for name in ("../secret", "/etc/hostname", "", ".", "x" * 5000, "\0"):
        text = (folder / CHECKSUMS).read_text()
        (folder / CHECKSUMS).write_text(f"{text}{'0' * 64}  {name}\n")
        with pytest.raises(BundleError, match=r"lacks|could not be read"):
            segue.load(folder)
        (folder / CHECKSUMS).write_text(text)


@pytest.mark.parametrize("best", [b"1", b"10", b"9" * 300, b"-1", b"true", b"1e999"])
def test_a_damaged_counter_chooses_no_other_checkpoint(best: bytes, corpus: Path, tmp_path: Path) -> None:
    recipe = small_recipe(steps=3, save_every=1, keep=3, validate_every=2)
    run = segue.train(recipe, corpus, tmp_path / "run")
    *_, newest = checkpoints(run)
    counters = json.loads((newest / "training.json").read_text())
    assert counters["best_step"] in (2, 3)
    text = (newest / "training.json").read_bytes()
    damaged = text.replace(b'"best_step": %d' % counters["best_step"], b'"best_step": ' + best)
    (newest / "training.json").write_bytes(damaged)
    with pytest.raises(BundleError, match="training.json is not the file that was saved"):
        best_checkpoint(run)
    (newest / CHECKSUMS).unlink()
    seal(newest)  # as an attacker would
    assert best_checkpoint(run) in checkpoints(run)


def test_a_checkpoint_that_is_a_link_to_nowhere_is_refused(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(steps=2), corpus, tmp_path / "run")
    (run / "checkpoints" / "step-00000009").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="step-00000009"):
        segue.load(run)  # and not forever: a run that trains removes old checkpoints, but no link stays then


def test_what_is_called_like_a_checkpoint_is_none(corpus: Path, tmp_path: Path) -> None:
    run = segue.train(small_recipe(steps=2), corpus, tmp_path / "run")
    (run / "checkpoints" / "step-00000002 (1)").mkdir()
    assert [folder.name for folder in checkpoints(run)] == ["step-00000002"]
