"""All steps in a few minutes: prepare, train, evaluate with longer and longer memory, generate, draw.

    python examples/demo.py [FOLDER]

Every step is a command that is shown before it runs, so that you can run it again with other settings.
"""

import json
import lzma
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import segue
from segue.text.corpus import open_corpus
from segue.training.run import read_log

TOKENS = 200_000


def run(*words: object, quiet: bool = False) -> str:
    """Show and run a segue command; returns what it printed."""
    shown = shlex.join(["segue", *map(str, words)])
    print(f"\n$ {shown}", flush=True)
    command = [sys.executable, "-c", "from segue.cli import main; main()", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    if not quiet:
        print(done.stdout, end="", flush=True)
    return done.stdout


def yardstick(data: Path) -> float:
    """Bits per byte of `xz -9` on the text that the model is scored on."""
    stream = open_corpus(data).stream("test")
    text = stream.ids[: TOKENS + 1].tobytes()
    return 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text)


def draw(run_folder: Path, scores: dict[int, float], xz: float) -> Path:
    """Draw the loss curve, and the loss by memory length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    events = read_log(run_folder)
    steps = [(event["step"], event["nats"] / 0.6931) for event in events if event["kind"] == "step"]
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


def main(folder: Path) -> None:
    data, trained = folder / "stdlib", folder / "demo"
    if not data.exists():
        run("prepare", "stdlib", "-o", data)
    shutil.rmtree(trained, ignore_errors=True)
    run("train", "stdlib-demo", "--data", data, "-o", trained)
    recipe = segue.preset("stdlib-demo").recipe
    assert isinstance(recipe, segue.Recipe)
    training = recipe.train.memory
    scores: dict[int, float] = {}
    for memory in (0, training, 4 * training):
        facts: dict[str, Any] = json.loads(
            run("eval", trained, "--memory", memory, "--limit", TOKENS, "--json", quiet=True)
        )
        scores[memory] = facts["bits_per_byte"]
        print(f"memory {memory:4d}: {scores[memory]:.3f} bits per byte")
    xz = yardstick(data)
    print(f"\n{'held-out text, ' + format(TOKENS, ',') + ' bytes':<38} bits per byte")
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
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
