"""All steps in a few minutes: prepare, train, evaluate with longer and longer memory, generate, draw.

    python examples/demo.py [FOLDER [--set train.steps=200 …]]

Every step is a command that is shown before it runs, so that you can run it again with other settings.
"""

import json
import lzma
import math
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import segue
from segue.text.corpus import open_corpus
from segue.training.run import read_log

PRESET, TOKENS = "stdlib-bpe", 65_536
"""The recipe, and how many tokens of held-out text are scored: about 200,000 bytes."""


def run(*words: object, quiet: bool = False) -> str:
    """Show and run a segue command; returns what it printed."""
    shown = shlex.join(["segue", *map(str, words)])
    print(f"\n$ {shown}", flush=True)
    command = [sys.executable, "-u", "-c", "from segue.cli import main; main()", *map(str, words)]
    printed = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:  # as it comes: validation shows while training goes on
            printed.append(line)
            if not quiet:
                print(line, end="", flush=True)
    if process.returncode:
        sys.exit(process.returncode)
    return "".join(printed)


def compressed(text: bytes) -> float:
    """Bits per byte of `xz -9` on a text."""
    return 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text)


def draw(run_folder: Path, scores: dict[int, float], xz: float) -> Path:
    """Draw the loss curve, and the loss by memory length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    events = read_log(run_folder)
    bits = next(1 / math.log(2) / event["bytes_per_token"] for event in events if "bytes_per_token" in event)
    steps = [(event["step"], bits * event["nats"]) for event in events if event["kind"] == "step"]
    valid = [(event["step"], event["bits_per_byte"]) for event in events if event["kind"] == "valid"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    left.plot(*zip(*steps, strict=True), linewidth=0.6, alpha=0.6, label="training")
    if valid:
        left.plot(*zip(*valid, strict=True), "o-", label="validation")
    left.set(
        title="Training on Python's standard library", xlabel="step", ylabel="bits per byte", ylim=(1, 5)
    )
    left.legend()
    names = [str(memory) for memory in scores]
    right.plot(names, list(scores.values()), "o-", label="Transformer-XL")
    for name, score in zip(names, scores.values(), strict=True):
        right.annotate(f"{score:.3f}", (name, score), textcoords="offset points", xytext=(0, 8), ha="center")
    right.axhline(xz, color="#b7791f", linestyle="--", label=f"xz -9: {xz:.3f}")
    right.set(title="Loss by memory length", xlabel="memory length", ylabel="bits per byte")
    right.margins(0.15)
    right.legend(loc="center right")
    figure.tight_layout()
    picture = run_folder / "demo.png"
    figure.savefig(picture, dpi=120)
    return picture


def main(folder: Path, *changes: str) -> None:
    """The whole demo in a folder; `changes` are further words for `segue train`."""
    data, trained = folder / "stdlib-bpe", folder / "demo"
    recipe = segue.preset(PRESET).recipe
    assert isinstance(recipe, segue.Recipe)
    if not data.exists():
        run("prepare", "stdlib", "--tokenizer", "bpe", "--vocab", recipe.model.vocab, "-o", data)
    shutil.rmtree(trained, ignore_errors=True)
    run("train", PRESET, "--data", data, "-o", trained, *changes)
    training = recipe.train.memory
    scores: dict[int, float] = {}
    for memory in (0, training, 4 * training):
        facts: dict[str, Any] = json.loads(
            run("eval", trained, "--memory", memory, "--limit", TOKENS, "--json", quiet=True)
        )
        scores[memory] = facts["bits_per_byte"]
        print(f"memory {memory:4d}: {scores[memory]:.3f} bits per byte")
    text = open_corpus(data).stream("test").text(1, TOKENS + 1)  # the first token is not predicted
    xz = compressed(text)
    print(f"\n{'held-out text, ' + format(len(text), ',') + ' bytes':<38} bits per byte")
    for memory, score in scores.items():
        note = " (as in training)" if memory == training else ""
        print(f"  {'memory ' + str(memory) + note:<36} {score:.3f}")
    print(f"  {'xz -9, for comparison':<36} {xz:.3f}")
    run(
        "generate",
        trained,
        "--prompt",
        "def read(self, size):\n",
        "--tokens",
        300,
        "--temperature",
        0.8,
        "--seed",
        3,
    )
    print(f"\nPicture: {draw(trained, scores, xz)}")
    print(
        "\nTry next:\n"
        f"  segue generate {trained} --prompt 'class ' --tokens 0        # without end; Ctrl-C stops it\n"
        f"  segue score {trained} FILE.py --top 5                        # the most surprising lines\n"
        f"  segue train --resume {trained} --set train.steps=3000 --extend rewarm   # train longer\n"
        f"  segue eval {trained} --dynamic --limit 50000                 # dynamic evaluation\n"
        "  segue info                                                   # the published recipes"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"), *sys.argv[2:])
