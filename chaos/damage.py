"""Damage on the disk: every single bit of a small checkpoint, and random damage to a run of three larger ones.

What is damaged must be noticed before it is used, or be without effect: then all that is loaded equals the original.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

import segue
from segue.checkpoint import checkpoints, load
from segue.errors import SegueError
from segue.recipe import Recipe
from segue.text.corpus import open_corpus
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.training.language import LanguageTask
from segue.training.optim import optimizer_tensors
from segue.training.state import State, load_state
from tally import Tally

ALPHABET = "abcdefghijklmnopqrstuvwxyz\n"
TAILS = (" (1).safetensors", ".copy.safetensors", ".bak", "~", " (1).json", ".segue-new")
"""How copies are called that people and programs leave beside a file."""
RANK, SECOND = "lanes-00000.safetensors", "source-tokenizer.json"


class Run(NamedTuple):
    """A trained run, and the state that its checkpoints are loaded into."""

    folder: Path
    state: State

    def _blank(self) -> State:
        """The state with nothing in it. (Building another one would take longer than all the rest.)"""
        for weight in self.state.model.parameters():
            weight.data.zero_()
        for optimizer in self.state.optimizers:
            optimizer.state.clear()
        torch.manual_seed(0)
        return replace(self.state, memories=list(self.state.memories))

    def resumed(self, warnings: list[str]) -> int:
        """All that a resumed run goes on with, as one number."""
        state = load_state(self.folder, self._blank, warnings)
        optimizers = optimizer_tensors(state.weights, state.optimizers)
        memories = [memory.tensors() for memory in state.memories]
        tensors = [dict(state.model.state_dict()), optimizers, *memories, {"random": torch.get_rng_state()}]
        return checksum(tensors, repr(state.counters))

    def loaded(self) -> int:
        """All that `segue.load` gives, as one number."""
        bundle = load(self.folder)
        assert bundle.tokenizer is not None
        told = (bundle.model.config, bundle.reading, bundle.tokenizer.json())
        return checksum([dict(bundle.model.state_dict())], repr(told))


def checksum(tensors: list[dict[str, Tensor]], told: str) -> int:
    number = crc32(told.encode())
    for group in tensors:
        for name, tensor in sorted(group.items()):
            number = crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), number)
            number = crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy(), number)
    return number


def trained(folder: Path, width: int, steps: int, **train: object) -> Run:
    """A run over text of 27 symbols."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    (folder / "text.txt").write_text("".join(draw.choices(ALPHABET, k=600)))
    source = from_files("text", [folder / "text.txt"])
    header = prepare(source, folder / "corpus", PrepareConfig(tokenizer="characters"), lambda *_: None)
    small = {"vocab": header.vocab, "width": width, "layers": 1, "heads": 1, "dropout": 0.1}
    recipe = Recipe(
        model={**small, "feedforward": 4 * width},
        train={"lanes": 2, "segment": 4, "memory": 4, "steps": steps, "save_every": 1, **train},
        reading={"segment": 4, "reach": {"memory": 4}},
    )
    run = segue.train(recipe, folder / "corpus", folder / "run")
    return Run(run, LanguageTask(recipe, open_corpus(folder / "corpus"), torch.device("cpu")).fresh())


def every_bit(folder: Path, every: int = 1) -> Tally:
    """Flip every bit of a checkpoint (or every so-manieth), one at a time; load it, and resume from it."""
    tally, begin = Tally("damage: every bit of a checkpoint"), time.monotonic()
    run = trained(folder, 1, 1, keep=1)
    (checkpoint,) = checkpoints(run.folder)
    wanted = {"load": run.loaded(), "resume": run.resumed([])}
    doings = {"load": run.loaded, "resume": lambda: run.resumed([])}
    bits = ((file, bit) for file in sorted(checkpoint.iterdir()) for bit in range(8 * file.stat().st_size))
    for number, (file, bit) in enumerate(bits):
        if number % every:
            continue
        with _flipped(file, bit):
            found = {name: _outcome(do, wanted[name]) for name, do in doings.items()}
            _put_back(run.folder)
        wrong = [
            f"{name}: {what}" for name, what in found.items() if what not in ("detected", "without effect")
        ]
        if wrong:
            tally.lose(f"bit {bit} of {file.name}: {'; '.join(wrong)}")
        else:
            tally.count("detected" if "detected" in found.values() else "without effect")
    tally.seconds = time.monotonic() - begin
    return tally


@contextmanager
def _flipped(file: Path, bit: int) -> Iterator[None]:
    """One bit of a file is another inside."""
    handle, (place, power) = os.open(file, os.O_RDWR), divmod(bit, 8)
    byte = os.pread(handle, 1, place)
    os.pwrite(handle, bytes([byte[0] ^ (1 << power)]), place)
    try:
        yield
    finally:
        os.pwrite(handle, byte, place)
        os.close(handle)


def _outcome(do: Callable[[], int], wanted: int) -> str:
    try:
        return "without effect" if do() == wanted else "other values were used"
    except SegueError:
        return "detected"
    except Exception as error:  # a traceback is what should never be
        return f"a traceback: {error!r}"


def _put_back(run: Path) -> None:
    """Checkpoints that were set aside, in their places again."""
    for aside in (run / "checkpoints").glob("damaged-*"):
        aside.rename(aside.with_name(aside.name.removeprefix("damaged-")))


Files = dict[Path, bytes]
Harm = Callable[[random.Random, Files, Path], set[Path]]
"""Damages a checkpoint of those whose files are given; returns what it touched, perhaps of another one too."""


def random_damage(folder: Path, count: int = 20_000, seed: int = 0) -> Tally:
    """Damage some of three checkpoints; resuming takes the newest one that is whole, and tells of the others."""
    tally, begin, draw = Tally("damage: at random"), time.monotonic(), random.Random(seed)
    run = trained(folder, 72, 3, keep=3, validate_every=2)
    kept = checkpoints(run.folder)
    files = {file: file.read_bytes() for checkpoint in kept for file in checkpoint.iterdir()}
    wanted = list(_each_alone(run, kept))
    best = run.loaded()
    for number in range(count):
        harms = draw.choices(HARMS, k=1 + (draw.random() < 0.25))
        touched: set[Path] = set()
        for harm in harms:
            touched |= harm(draw, files, draw.choices(kept, weights=(1, 2, 4))[0])
        warnings: list[str] = []
        loaded = _outcome(run.loaded, best)
        wrong = "" if loaded in ("detected", "without effect") else f"load: {loaded}"
        wrong = wrong or _resumes_wrongly(run, kept, wanted, touched, warnings)
        _put_back(run.folder)
        _put(touched, files)
        if wrong:
            tally.lose(f"case {number}, {', '.join(harm.__name__ for harm in harms)}: {wrong}")
        else:
            tally.count("passed over and told" if warnings else "without effect")
    tally.seconds = time.monotonic() - begin
    return tally


def _each_alone(run: Run, kept: Sequence[Path]) -> Iterator[int]:
    """What resuming from each of the checkpoints gives, with newer ones out of the way."""
    for place in range(len(kept)):
        newer = kept[place + 1 :]
        for checkpoint in newer:
            checkpoint.rename(checkpoint.with_name(f"damaged-{checkpoint.name}"))
        yield run.resumed([])
        _put_back(run.folder)


def _resumes_wrongly(
    run: Run, kept: Sequence[Path], wanted: Sequence[int], touched: set[Path], warnings: list[str]
) -> str:
    """What is wrong with what a resumed run goes on with, or nothing."""
    damaged = {path.parent for path in touched}
    try:
        found = run.resumed(warnings)
    except SegueError as error:
        return "" if damaged == set(kept) else f"nothing was resumed: {error}"
    except Exception as error:  # a traceback is what should never be
        return f"a traceback: {error!r}"
    passed = kept[len(kept) - len(warnings) :]
    if not damaged.issuperset(passed):
        return f"a whole checkpoint was passed over: {warnings}"
    if any("\n" in warning for warning in warnings):
        return f"a warning of several lines: {warnings}"
    return "" if found == wanted[len(kept) - len(warnings) - 1] else "other values were used"


def _put(touched: set[Path], files: Files) -> None:
    """What was touched as it was."""
    for path in touched:
        _clear(path)
        if path in files:
            path.write_bytes(files[path])


def _clear(path: Path) -> Path:
    """Remove whatever stands there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    return path


def _some(draw: random.Random, files: Files, checkpoint: Path) -> Path:
    return draw.choice([path for path in files if path.parent == checkpoint])


def flipped_bits(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    text = bytearray(files[path])
    for _ in range(draw.choice((1, 2, 10, 1000))):
        text[draw.randrange(len(text))] ^= 1 << draw.randrange(8)
    _clear(path).write_bytes(text)
    return {path}


def truncated(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    lines = [place + 1 for place, byte in enumerate(files[path][:2000]) if byte == ord("\n")]
    end = draw.choice([0, draw.randrange(len(files[path])), len(files[path]) - 1, *lines[:-1]])
    _clear(path).write_bytes(files[path][:end])
    return {path}


def extended(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    more = draw.choice((b"\0", b"\n", bytes(4096), files[path], draw.randbytes(100)))
    _clear(path).write_bytes(files[path] + more)
    return {path}


def zeroed_block(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    size = draw.choice((1, 512, 4096, 2**20))
    begin = draw.randrange(len(files[path])) // size * size
    text = files[path]
    _clear(path).write_bytes(text[:begin] + bytes(len(text[begin : begin + size])) + text[begin + size :])
    return {path}


def swapped(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    """Two files of one checkpoint, or one of each of two."""
    path = _some(draw, files, checkpoint)
    other = draw.choice([other for other in files if other != path])
    _clear(path).write_bytes(files[other])
    _clear(other).write_bytes(files[path])
    return {path, other}


def deleted(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    return {_clear(path)}


def duplicated(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    """A copy of any file beside the others, under such a name as copies have, or a rank's."""
    source = draw.choice(list(files))
    name = draw.choice([source.stem + draw.choice(TAILS), source.name + draw.choice(TAILS), RANK, SECOND])
    _clear(checkpoint / name).write_bytes(files[source])
    return {checkpoint / name}


def replaced_by_a_folder(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    _clear(path).mkdir()
    if draw.random() < 0.5:
        (path / path.name).write_bytes(files[path])
    return {path}


def linked_to_nowhere(draw: random.Random, files: Files, checkpoint: Path) -> set[Path]:
    path = _some(draw, files, checkpoint)
    _clear(path).symlink_to(draw.choice((checkpoint / "nowhere", path, Path("/nowhere/at/all"))))
    return {path}


HARMS: tuple[Harm, ...] = (
    flipped_bits,
    truncated,
    extended,
    zeroed_block,
    swapped,
    deleted,
    duplicated,
    replaced_by_a_folder,
    linked_to_nowhere,
)
