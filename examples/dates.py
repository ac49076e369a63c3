"""Sequence to sequence in two minutes, with generated data: dates in many languages become 1987-03-14.

python examples/dates.py [FOLDER]
"""

import shutil
import sys
from pathlib import Path

import segue
from demo import run
from segue.infer.translate import looked_at, translate

SHOWN = "Samstag, den 14. März 1987"


def draw(trained: Path, text: str) -> Path:
    """Draw the cross-attention weights of the last layer, mean of all heads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    translator = segue.load_translator(trained)
    answer = translate(translator, [text.encode()])[0][0].text
    source, target, weights = looked_at(translator, text.encode(), answer)
    cross = [matrix for name, matrix in weights.items() if name.endswith("cross")][-1].mean(dim=0)
    figure, axes = pyplot.subplots(figsize=(0.3 * len(source) + 1, 0.3 * len(target) + 1))
    axes.imshow(cross, cmap="Blues", vmin=0)
    axes.set_xticks(range(len(source)), source)
    axes.set_yticks(range(len(target)), target)
    axes.set(title=f"{text} → {answer}")
    figure.tight_layout()
    picture = trained / "alignment.png"
    figure.savefig(picture, dpi=120)
    return picture


def main(folder: Path) -> None:
    data, trained = folder / "dates-data", folder / "dates"
    if not data.exists():
        run("prepare-pairs", "--task", "dates", "-o", data)
    shutil.rmtree(trained, ignore_errors=True)
    run("train", "dates-cpu", "--data", data, "-o", trained)
    run("eval", trained)
    print(f"\nPicture: {draw(trained, SHOWN)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
