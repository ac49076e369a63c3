"""Every command that writes, small, with what must hold after it was disturbed and done again."""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import segue
from children import command
from segue.checkpoint import WEIGHTS, Bundle, average, checkpoints, load
from segue.config import Reach, Reading, XLConfig
from segue.errors import SegueError
from segue.interop.files import export_bundle
from segue.recipe import Recipe, recipe_toml
from segue.text.corpus import open_corpus
from segue.text.pairs import open_pairs
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from syscalls import Case

STEPS = 2
SMALL = ("--threads", 1)


def recipe(steps: int = STEPS, **train: object) -> Recipe:
    return Recipe(
        model={"vocab": 256, "width": 4, "layers": 1, "heads": 1, "feedforward": 4, "dropout": 0.1},
        train={
            "lanes": 2,
            "segment": 4,
            "memory": 4,
            "steps": steps,
            "learning_rate": 1e-2,
            "schedule": "constant",
            "save_every": 1,
            "keep": 1,
            **train,
        },
        reading={"segment": 4, "reach": {"memory": 4}},
    )


def small_corpus(folder: Path, size: int = 400) -> Path:
    draw = random.Random(0)
    text = folder / "text.txt"
    text.write_text("".join(draw.choice("abc \n") for _ in range(size)))
    prepare(from_files("text", [text]), folder / "corpus", PrepareConfig(), lambda *_: None)
    return folder / "corpus"


def bundle(seed: int = 0) -> Bundle:
    import torch

    torch.manual_seed(seed)
    model = segue.TransformerXL(XLConfig(vocab=256, width=4, layers=1, heads=1, feedforward=4))
    return Bundle(model.eval(), Reading(segment=4, reach=Reach(memory=4)))


def cases(shared: Path) -> list[Case]:
    """All of them, with what they compare with made once in the shared folder."""
    shared.mkdir(parents=True, exist_ok=True)
    corpus = small_corpus(shared)
    whole = segue.train(recipe(), corpus, shared / "whole")
    part = segue.train(recipe(STEPS - 1), corpus, shared / "part")
    tuned = segue.train(recipe(), corpus, shared / "tuned", begin_with=load(part))
    cooling = {"cooldown": 1, "save_every": 0}
    cooled = segue.train(recipe(**cooling), corpus, shared / "cooled")
    longer = segue.train(recipe(STEPS + 2, **cooling), corpus, shared / "longer")
    for seed in range(2):
        bundle(seed).save(shared / f"bundle-{seed}")
    export_bundle(bundle(), shared / "foreign", "huggingface")
    (shared / "recipe.toml").write_text(recipe_toml(recipe()))
    lines = "".join(f"{word}\t{word[::-1]}\n" for word in ("one", "two", "three", "four") * 10)
    (shared / "pairs.tsv").write_text(lines)
    more = ("--resume", "run", "--set", f"train.steps={STEPS + 2}")
    return [
        _training("train", shared, [], whole),
        _training("train --from", shared, ["--from", part], tuned),
        _going_on("train --resume", part, ["--resume", "run", "--set", f"train.steps={STEPS}"], whole),
        _going_on("train --resume, extending", cooled, list(more), longer),
        Case(
            "prepare",
            _nothing,
            _into("prepare", shared / "text.txt", "-o", "made"),
            partial(_opens, open_corpus),
        ),
        Case(
            "prepare-pairs",
            _nothing,
            _into("prepare-pairs", "--pairs", shared / "pairs.tsv", "--size", 260, "-o", "made"),
            partial(_opens, open_pairs),
        ),
        Case("import", _nothing, _into("import", shared / "foreign", "-o", "made"), partial(_opens, load)),
        Case(
            "export",
            _nothing,
            _into("export", shared / "bundle-0", "--layout", "huggingface", "-o", "made"),
            partial(_opens, partial(_same_files, shared / "foreign")),
        ),
        Case(
            "average, replacing a bundle",
            partial(_copied, shared / "bundle-1", "made"),
            _into("average", whole, "--last", 1, "-o", "made"),
            partial(_opens, partial(_one_of, [load(shared / "bundle-1"), average(whole, 1)])),
        ),
        Case("lab", _nothing, _into("lab", "positions", "--quick", "--data", corpus, "-o", "made"), _page),
    ]


def _nothing(folder: Path) -> None:
    """An empty folder."""


def _copied(source: Path, name: str, folder: Path) -> None:
    shutil.copytree(source, folder / name)


def _into(*words: object) -> Callable[[Path], Callable[[], None]]:
    """A command with what it writes inside the folder."""
    return lambda folder: command(*(folder / word if word in ("made", "run") else word for word in words))


def _training(name: str, shared: Path, more: list[object], whole: Path) -> Case:
    begin = ("train", shared / "recipe.toml", "--data", shared / "corpus", "-o", "run", *SMALL, *more)

    def go_on(folder: Path) -> Callable[[], None]:
        there = (folder / "run").exists()
        return _into(*(("train", "--resume", "run", *SMALL) if there else begin))(folder)

    return Case(name, _nothing, _into(*begin), partial(_ends_alike, whole), go_on)


def _going_on(name: str, source: Path, words: list[object], whole: Path) -> Case:
    return Case(
        name, partial(_copied, source, "run"), _into("train", *words, *SMALL), partial(_ends_alike, whole)
    )


def _ends_alike(whole: Path, folder: Path) -> str:
    """The weights of an undisturbed run, byte by byte, and a log of every step."""
    ours, theirs = ((checkpoints(run)[-1] / WEIGHTS).read_bytes() for run in (folder / "run", whole))
    if ours != theirs:
        return "other weights than an undisturbed run"
    try:
        load(folder / "run")
        lines = (folder / "run" / "log.jsonl").read_text().splitlines()
        steps = [event["step"] for event in map(json.loads, lines) if event["kind"] == "step"]
    except (SegueError, ValueError, OSError) as error:
        return f"cannot be read: {error}"
    return "" if len(set(steps)) == len(steps) else f"steps are logged twice: {steps}"


def _opens(read: Callable[[Path], object], folder: Path) -> str:
    try:
        read(folder / "made")
    except (SegueError, AssertionError) as error:
        return f"cannot be read: {error}"
    return ""


def _same_files(wanted: Path, made: Path) -> None:
    for file in wanted.iterdir():
        assert (made / file.name).read_bytes() == file.read_bytes(), f"{file.name} is another"


def _one_of(wanted: list[Bundle], made: Path) -> None:
    ours = load(made).model.state_dict()
    assert any(
        all((ours[name] == weight).all() for name, weight in one.model.state_dict().items()) for one in wanted
    ), "neither the old nor the new"


def _page(folder: Path) -> str:
    page = folder / "made" / "index.html"
    return "" if page.read_text().rstrip().endswith("</html>") else "half a page"
