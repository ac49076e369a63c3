"""Simple baselines of the tasks that encoders are fine-tuned for: what can be had without one."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.infer.metrics import accuracy, answer_f1, entity_scores, exact_match, macro_f1, pearson, spearman
from segue.text.examples import ExampleSet

PENALTIES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
"""Of the squared weights; the validation split chooses."""

AROUND, MOST_WORDS = 8, 3
"""The words to each side that are compared with the question, and the words of an answer."""


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def bag_of_words(data: ExampleSet) -> dict[str, float]:
    """Logistic regression of the words that occur, by L-BFGS."""
    splits: dict[str, list[Any]] = {split: data.examples(split) for split in ("train", "valid", "test")}
    labels = {label: number for number, label in enumerate(data.header.labels)}
    known = sorted({word for one in splits["train"] for word in words_of(one.texts[0])})
    columns = {word: column for column, word in enumerate(known)}
    inputs = {split: _bags(examples, columns) for split, examples in splits.items()}
    targets = torch.tensor([labels[one.label] for one in splits["train"]])

    def predicted(weights: Tensor, split: str) -> list[str]:
        best = (torch.sparse.mm(inputs[split], weights)).argmax(dim=1)
        return [data.header.labels[number] for number in best]

    best = (-1.0, 0.0, torch.empty(0))
    for penalty in PENALTIES:
        weights = _regression(inputs["train"], targets, len(labels), penalty)
        here = accuracy(predicted(weights, "valid"), [one.label for one in splits["valid"]])
        best = max(best, (here, penalty, weights), key=lambda one: one[0])
    ours, theirs = predicted(best[2], "test"), [one.label for one in splits["test"]]
    return {"accuracy": accuracy(ours, theirs), "macro_f1": macro_f1(ours, theirs), "penalty": best[1]}


def _bags(examples: Sequence[Any], columns: dict[str, int]) -> Tensor:
    """(examples, words) 1 where a word occurs; the last column is always 1."""
    places: list[tuple[int, int]] = []
    for row, one in enumerate(examples):
        places += [(row, columns[word]) for word in set(words_of(one.texts[0])) if word in columns]
        places.append((row, len(columns)))
    shape = len(examples), len(columns) + 1
    return torch.sparse_coo_tensor(
        torch.tensor(places).T, torch.ones(len(places)), shape, check_invariants=True
    ).coalesce()


def _regression(inputs: Tensor, targets: Tensor, labels: int, penalty: float) -> Tensor:
    weights = torch.zeros(inputs.size(1), labels, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (
            F.cross_entropy(torch.sparse.mm(inputs, weights), targets) + penalty * weights[:-1].square().sum()
        )
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return weights.detach()


def shared_words(data: ExampleSet) -> dict[str, float]:
    """The similarity of two texts: the words that they share among all that they have."""
    examples: list[Any] = data.examples("test")
    sets = [[set(words_of(text)) for text in one.texts] for one in examples]
    ours = [len(first & second) / max(1, len(first | second)) for first, second in sets]
    theirs = [one.score for one in examples]
    return {"pearson": pearson(ours, theirs), "spearman": spearman(ours, theirs)}


def frequent_tags(data: ExampleSet) -> dict[str, float]:
    """Each word has the tag that it has most often in training; an unknown word is outside."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    train: list[Any] = data.examples("train")
    for one in train:
        for word, tag in zip(one.words, one.tags, strict=True):
            counts[word.lower()][tag] += 1
    usual = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    test: list[Any] = data.examples("test")
    ours = [[usual.get(word.lower(), "O") for word in one.words] for one in test]
    precision, recall, f1 = entity_scores(ours, [one.tags for one in test])
    return {"entity_f1": f1, "precision": precision, "recall": recall}


def nearby_words(data: ExampleSet) -> dict[str, float]:
    """The run of words outside of the question, three at most, with the most question words around it."""
    examples: list[Any] = data.examples("test")
    contexts = {one.context for one in examples}
    counts = Counter(word for context in contexts for word in set(words_of(context)))
    rarity = {word: math.log(len(contexts) / count) for word, count in counts.items()}
    ours = [_nearest_span(one.question, one.context, rarity) for one in examples]
    wanted = [[right.text for right in one.answers] for one in examples]
    both = list(zip(ours, wanted, strict=True))
    return {
        "f1": sum(answer_f1(text, right) for text, right in both) / len(both),
        "exact_match": sum(exact_match(text, right) for text, right in both) / len(both),
    }


def _nearest_span(question: str, context: str, rarity: dict[str, float]) -> str:
    asked = set(words_of(question))
    matches = list(re.finditer(r"\w+", context))
    words = [match[0].lower() for match in matches]
    value = [rarity.get(word, 0.0) if word in asked else 0.0 for word in words]
    best = (-1.0, 0, 0)
    for first in range(len(words)):
        for last in range(first, min(first + MOST_WORDS, len(words))):
            if words[last] in asked:
                break
            around = sum(value[max(0, first - AROUND) : first]) + sum(value[last + 1 : last + 1 + AROUND])
            inside = sum(rarity.get(word, 0.0) for word in words[first : last + 1]) / (last - first + 1)
            best = max(best, (around + 0.1 * inside, first, last), key=lambda one: one[0])
    return context[matches[best[1]].start() : matches[best[2]].end()] if matches else ""
