"""`segue eval` for encoders with labelled examples: accuracy, correlation, entities, answers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.cli.eval_translator import data_of
from segue.cli.progress import Progress
from segue.cli.terminal import echo, tell
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.checkpoint import TextEncoder
    from segue.infer.judge_examples import ExampleScores

FORMS = {
    "accuracy": "accuracy {:.2%}",
    "macro_f1": "macro-F1 {:.2%}",
    "pearson": "Pearson {:.4f}",
    "spearman": "Spearman {:.4f}",
    "mean_squared_error": "mean squared error {:.4f}",
    "entity_f1": "entity F1 {:.2%}",
    "precision": "precision {:.2%}",
    "recall": "recall {:.2%}",
    "exact_match": "exact match {:.2%}",
    "f1": "F1 {:.2%}",
    "best_f1": "best F1 {:.2%}",
    "best_threshold": "with --threshold {:.2f}",
}
MOST_SHOWN = 12
"""Labels of a confusion matrix that is printed; a larger one goes into --json or a picture."""


def evaluate_examples(
    run: Path, encoder: "TextEncoder", data: Path | None, split: str, picture: Path | None, as_json: bool
) -> None:
    """Print the figures of a split; and draw the confusion matrix."""
    from segue.infer.judge_examples import check_labelled_head, judge_examples
    from segue.text.examples import open_examples

    labels = check_labelled_head(encoder).labels
    if picture is not None:
        if not labels:
            raise InputError("--picture draws the confusion matrix of labels, and this encoder has none")
        from segue.lab.confusion_matrix import check_picture

        check_picture(picture)
    examples = open_examples(data_of(run, data)).examples(split)
    with Progress("examples") as progress:
        scores = judge_examples(encoder, examples, progress.update)
    if scores.truncated:
        tell(
            f"note: {scores.truncated:,} texts had more than {encoder.reading.max_length} tokens and were cut"
        )
    if picture is not None:
        from segue.lab.confusion_matrix import draw_confusion

        draw_confusion(scores.confusion or [], labels, picture)
        tell(f"{picture}: written")
    if as_json:
        facts: dict[str, Any] = {"split": split, "examples": scores.examples, **scores.figures}
        if scores.confusion is not None:
            facts |= {"labels": labels, "confusion": scores.confusion}
        echo(json.dumps(facts, ensure_ascii=False))
        return
    _print(split, scores, labels)


def _print(split: str, scores: "ExampleScores", labels: tuple[str, ...]) -> None:
    figures = ", ".join(FORMS[name].format(value) for name, value in scores.figures.items())
    echo(f"{split}: {scores.examples:,} examples, {figures}")
    if scores.confusion is None or len(labels) > MOST_SHOWN:
        return
    width = max(len(label) for label in labels)
    cell = max(width, len(str(max(map(max, scores.confusion)))))
    echo(" ".join([" " * width, *(label.rjust(cell) for label in labels)]) + "  (predicted)")
    for label, row in zip(labels, scores.confusion, strict=True):
        echo(" ".join([label.rjust(width), *(str(count).rjust(cell) for count in row)]))
