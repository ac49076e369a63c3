"""Record what scikit-learn, SciPy, seqeval and SQuAD's own script say of random predictions, in cases.json.

python3 -m venv /tmp/metrics
/tmp/metrics/bin/pip install seqeval==1.2.2 scipy==1.17.1 scikit-learn==1.9.1
pip download --no-deps transformers==4.57.1   # its squad_metrics.py holds SQuAD 2.0's functions; unpack that file
/tmp/metrics/bin/python tests/reference/metrics/record.py squad_metrics.py
"""

import ast
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

KINDS = ("person", "creative-work", "x")
ANSWERS = [
    ("the Norman", ["Normans", "the Norman people"]),
    ("in the 10th century", ["10th century", "the 10th and 11th centuries"]),
    ("", []),
    ("France", []),
    ("", ["France"]),
    ("A", ["the"]),
    ("the", ["the"]),
    ("U.S.", ["US", "United States"]),
    ("Émile-Zola’s house", ["Émile Zola's house"]),
    ("a b b c", ["b b b", "c a"]),
    ("twenty-one", ["twenty one"]),
    ("  spaces\tand\nlines ", ["spaces and lines"]),
    ("an apple a day", ["apple day"]),
    ("theatre", ["the atre"]),
]


def squad_functions(path: Path) -> dict[str, Any]:
    """The functions of transformers' squad_metrics.py that need nothing else."""
    wanted = {"normalize_answer", "get_tokens", "compute_exact", "compute_f1"}
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    names: dict[str, Any] = {}
    exec("import re, string, collections", names)  # noqa: S102
    exec(compile(tree, str(path), "exec"), names)  # noqa: S102
    return names


def record(squad: Path) -> dict[str, Any]:
    import seqeval.metrics
    from scipy.stats import pearsonr, spearmanr
    from seqeval.metrics.sequence_labeling import get_entities
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

    warnings.simplefilter("ignore")
    draw = random.Random(0)
    labels, scores, tags = [], [], []
    for size in (1, 2, 7, 40, 200):
        ours, theirs = ([draw.choice("abcd"[: draw.randint(1, 4)]) for _ in range(size)] for _ in range(2))
        table = confusion_matrix(theirs, ours, labels=list("abcd")).tolist()
        figures = [accuracy_score(theirs, ours), f1_score(theirs, ours, average="macro", zero_division=0)]
        labels.append([ours, theirs, *map(float, figures), table])
    for size in (2, 5, 30, 30, 300):
        ours, theirs = ([round(draw.gauss(2, 1), draw.randint(0, 3)) for _ in range(size)] for _ in range(2))
        scores.append([ours, theirs, float(pearsonr(ours, theirs)[0]), float(spearmanr(ours, theirs)[0])])
    for prefixes in ("BIO", "IO", "BIESO"):
        for _ in range(8):
            sides: list[list[list[str]]] = [[], []]
            for _ in range(draw.randint(1, 5)):
                size = draw.randint(1, 9)
                for side in sides:
                    drawn = ((draw.choice(prefixes), draw.choice(KINDS)) for _ in range(size))
                    side.append([prefix if prefix == "O" else f"{prefix}-{kind}" for prefix, kind in drawn])
            ours, theirs = sides
            names = ("precision_score", "recall_score", "f1_score")
            figures = [float(getattr(seqeval.metrics, name)(theirs, ours)) for name in names]
            tags.append([ours, theirs, figures, [get_entities(sentence) for sentence in ours]])
    functions = squad_functions(squad)
    answers = []
    for answer, wanted in ANSWERS:
        golds = [one for one in wanted if functions["normalize_answer"](one)] or [""]
        exact = max(functions["compute_exact"](gold, answer) for gold in golds)
        f1 = max(functions["compute_f1"](gold, answer) for gold in golds)
        answers.append([answer, wanted, float(exact), float(f1)])
    return {"labels": labels, "scores": scores, "tags": tags, "answers": answers}


if __name__ == "__main__":
    cases = json.dumps(record(Path(sys.argv[1])), ensure_ascii=False)
    Path(__file__).with_name("cases.json").write_text(cases + "\n")
