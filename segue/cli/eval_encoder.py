"""`segue eval` for encoders: of a masked language model, perplexity and accuracy of masked tokens; else its task's."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from segue.cli.eval_examples import evaluate_examples
from segue.cli.eval_translator import data_of
from segue.cli.progress import Progress
from segue.cli.terminal import echo
from segue.errors import InputError

if TYPE_CHECKING:
    from segue.checkpoint import TextEncoder
    from segue.infer.masked import MaskedScore
    from segue.progress import Report


def evaluate_encoder(
    run: Path,
    data: Path | None,
    split: str,
    limit: int | None,
    device: str,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Print the figures of the encoder's task."""
    from segue.checkpoint import load_encoder_bundle

    encoder = load_encoder_bundle(run)
    encoder.model.to(device)
    head = encoder.model.task
    if head is None or head.task != "masked":
        evaluate_examples(run, encoder, data, split, picture, as_json)
        return
    if picture is not None:
        raise InputError("--picture draws the confusion matrix of labels, and masked words are too many")
    with Progress("tokens") as progress:
        score = _scored(encoder, data_of(run, data), split, limit, progress.update)
    if as_json:
        echo(json.dumps({"split": split, **score.scores(), "masked": score.places, "tokens": score.tokens}))
        return
    pairs = score.next_sentence_accuracy
    following = "" if pairs is None else f", {pairs:.2%} of {score.pairs:,} pairs"
    echo(f"{split}: masked perplexity {score.perplexity:.3f}, accuracy {score.accuracy:.2%}{following}")
    echo(
        f"{score.places:,} masked tokens among {score.tokens:,}, in texts of {encoder.reading.max_length} tokens"
    )


def _scored(
    encoder: "TextEncoder", data: Path, split: str, limit: int | None, report: "Report"
) -> "MaskedScore":
    from segue.infer.masked import evaluate_masked
    from segue.text.corpus import open_corpus
    from segue.text.masked_texts import Masking, masked_texts
    from segue.text.masking import maskable_pieces

    corpus, head = open_corpus(data), encoder.model.task
    if corpus.tokenizer.json() != encoder.tokenizer.json():
        raise InputError(
            f"{corpus.folder} was prepared with another tokenizer than the encoder's; prepare it again with "
            "--tokenizer-file BUNDLE/tokenizer.json"
        )
    texts = masked_texts(
        corpus.stream(split),
        maskable_pieces(encoder.tokenizer, str(corpus.folder)),
        Masking(pairs=head is not None and head.next_sentence),
        encoder.reading.max_length,
        f"{split} of {corpus.folder}",
    )
    return evaluate_masked(encoder.model, texts, limit=limit, report=report)
