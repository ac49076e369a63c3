"""`segue recl --clamp`: distances are clamped in models that have distances, and no others mind."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from segue.checkpoint import Bundle
from segue.cli import app
from segue.config import Reach, Reading, RecurrentConfig
from segue.nn.recurrent import RecurrentModel
from segue.progress import silent
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.text.tokenizer import ByteTokenizer
from support import build, shape


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group")
    (folder / "text").write_bytes(bytes(range(32, 127)) * 40)
    prepare(from_files("text", [folder / "text"]), folder / "data", PrepareConfig(), silent)
    reading = Reading(segment=8, reach=Reach(memory=24))
    Bundle(build(shape(vocab=256)), reading, ByteTokenizer()).save(folder / "xl")
    lstm = RecurrentModel(RecurrentConfig(vocab=256, width=8, layers=1))
    Bundle(lstm, Reading(segment=8, reach=Reach(memory=1)), ByteTokenizer()).save(folder / "lstm")
    return folder


def curves(group: Path, *more: object) -> dict[str, dict[str, float]]:
    few = ["--step", 8, "--longest", 16, "--positions", 30, "--json", "--data", group / "data"]
    words = ["recl", group / "xl", group / "lstm", *few, *more]
    done = CliRunner().invoke(app, [*map(str, words)], env={"SEGUE_THREADS": "1"})
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)["nats_by_context"]
    return {name: found[str(group / name)] for name in ("xl", "lstm")}


def test_a_clamp_changes_what_has_distances_and_nothing_else(group: Path) -> None:
    plain, clamped, far = curves(group), curves(group, "--clamp", 2), curves(group, "--clamp", 500)
    assert clamped["xl"]["8"] != pytest.approx(plain["xl"]["8"], rel=1e-6)
    assert far["xl"] == pytest.approx(plain["xl"], rel=1e-6)
    assert clamped["lstm"] == plain["lstm"]
