"""What a command does not wait for: heavy libraries that it does not need, and checksums that others can compute."""

import subprocess
import sys
from pathlib import Path

import pytest

import segue
from segue.checkpoint import Bundle
from segue.checksums import file_checksum, sum_ahead
from segue.config import Reach, Reading, XLConfig
from segue.errors import BundleError
from segue.footprint import sizes
from segue.presets import PRESETS
from segue.presets.sizes import known_sizes
from segue.recipe import Recipe
from segue.text.tokenizer import ByteTokenizer

NEVER = {
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "transformers",
    "matplotlib",
    "pandas",
    "segue.interop.files",
    "segue.lab.report",
}
NOT_TO_SHOW = NEVER | {"torch", "numpy", "tokenizers", "safetensors"}
NOT_TO_READ = NEVER | {
    "rich",
    "segue.distributed",
    "segue.hf",
    "segue.interop",
    "segue.presets",
    "segue.text.prepare",
    "segue.training",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
}

RUN = "import sys; from segue.cli import main\ntry: main()\nexcept SystemExit as end: assert not end.code\n"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    model = segue.TransformerXL(XLConfig(vocab=256, width=8, layers=1, heads=2))
    Bundle(model, Reading(segment=8, reach=Reach(memory=8)), ByteTokenizer()).save(folder)
    return folder


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], NOT_TO_SHOW | {"pydantic"}),
        (["info"], NOT_TO_SHOW),
        (["info", "wt103-standard"], NOT_TO_SHOW),
        (["generate", "BUNDLE", "--prompt", "the", "--tokens", "1"], NOT_TO_READ),
    ],
    ids=["help", "presets", "preset", "generate"],
)
def test_a_command_imports_only_what_it_needs(bundle: Path, words: list[str], unwanted: set[str]) -> None:
    check = f"{RUN}sys.exit(' '.join(sorted({unwanted!r} & set(sys.modules))) or 0)"
    command = [sys.executable, "-c", check, *(str(bundle) if word == "BUNDLE" else word for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NOTE_COLLECTIONS = """
import gc, sys
early = []
def note(phase, _):
    torch = sys.modules.get("torch")
    early.extend([phase] if torch and getattr(torch.__spec__, "_initializing", False) else [])
gc.callbacks.append(note)
"""


def test_garbage_is_collected_after_torchs_import_but_not_during_it(bundle: Path) -> None:
    script = f"{NOTE_COLLECTIONS}{RUN}assert not early and gc.isenabled() and gc.get_freeze_count() > 1000"
    command = [sys.executable, "-c", script, "generate", str(bundle), "--tokens", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_whoever_imported_torch_before_keeps_a_collector_of_everything() -> None:
    script = (
        "import gc, torch\nfrom segue.cli.machine import use\nuse(1, 'cpu')\nassert not gc.get_freeze_count()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PRESETS)
def test_the_recorded_sizes_are_the_calculated_ones(name: str) -> None:
    recipe = PRESETS[name].recipe
    assert known_sizes(recipe) == sizes(recipe), "run tests/record_sizes.py"


def test_another_recipe_has_no_recorded_size() -> None:
    recipe = PRESETS["stdlib-demo"].recipe
    assert isinstance(recipe, Recipe)
    wider = recipe.model_copy(update={"model": recipe.model.model_copy(update={"width": 384})})
    assert known_sizes(wider) is None


def test_a_checksum_computed_ahead_is_the_files(bundle: Path) -> None:
    weights = bundle / "model.safetensors"
    alone = file_checksum(weights)
    sum_ahead(bundle)
    assert file_checksum(weights) == alone


def test_what_changes_after_a_checksum_began_is_noticed(bundle: Path) -> None:
    weights = bundle / "model.safetensors"
    sum_ahead(bundle)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BundleError, match="checksum differs"):
        segue.load(bundle)


def test_summing_ahead_says_nothing_of_what_is_no_bundle(tmp_path: Path) -> None:
    sum_ahead(tmp_path / "missing")
    sum_ahead(tmp_path)
