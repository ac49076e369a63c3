"""Checks before a run starts: model, data and ranks fit together, and nothing foreseeable stops the run later."""

from segue.checkpoint import Bundle, TextEncoder, Translator
from segue.config import EncoderConfig, Seq2SeqConfig, XLConfig
from segue.errors import TrainingError
from segue.recipe import AnyRecipe, EncoderRecipe, Recipe, TranslationRecipe
from segue.text.corpus import Corpus
from segue.text.examples import ExampleSet
from segue.text.lanes import Lanes
from segue.text.pairs import PairSet
from segue.text.tokenizer import digest
from segue.training.encoder_data import check_texts

Data = Corpus | PairSet | ExampleSet
Model = Bundle | Translator | TextEncoder


def check_compatible(recipe: AnyRecipe, opened: Data, begin_with: Model | None) -> None:
    """Check that the model fits the data, and that the bundle to fine-tune fits both."""
    vocab, data_vocab = recipe.model.vocab, opened.header.vocab
    padded = isinstance(begin_with, TextEncoder) and vocab > data_vocab  # published ones may have idle rows
    if vocab != data_vocab and not padded and not isinstance(opened, ExampleSet):  # texts fit every tokenizer
        raise TrainingError(
            f"the model has {vocab:,} symbols and {opened.folder} {data_vocab:,}; "
            f"prepare it with the model's tokenizer, or use --set model.vocab={data_vocab}"
        )
    if isinstance(recipe, TranslationRecipe) and isinstance(opened, PairSet):
        source_vocab = opened.header.source_vocab
        if recipe.model.source_vocab != source_vocab:
            raise TrainingError(
                f"the model has {recipe.model.source_vocab:,} source symbols and {opened.folder} {source_vocab:,} "
                f"(0: shared with the target); use --set model.source_vocab={source_vocab}"
            )
    if begin_with is None:
        return
    free = {"dropout", "attention_dropout", "pooler"}  # an encoder's pooler can begin fresh
    if begin_with.model.config.model_dump(exclude=free) != recipe.model.model_dump(exclude=free):
        raise TrainingError("the recipe's model is not the bundle's; fine-tuning keeps the bundle's shape")
    if _has_other_tokenizer(begin_with, opened):
        raise TrainingError(
            f"{opened.folder} was not prepared with the bundle's tokenizer; "
            "prepare it again with --tokenizer file --tokenizer-file BUNDLE/tokenizer.json"
        )


def _has_other_tokenizer(begin_with: Model, opened: Data) -> bool:
    """Whether the data was prepared with another tokenizer than the bundle's."""
    if isinstance(begin_with, TextEncoder) and isinstance(opened, ExampleSet):
        return False  # its texts are cut by the encoder's
    if isinstance(begin_with, TextEncoder) and isinstance(opened, Corpus):
        return begin_with.tokenizer.json() != opened.tokenizer.json()
    if isinstance(begin_with, Bundle) and isinstance(opened, Corpus):
        return begin_with.tokenizer is not None and digest(begin_with.tokenizer) != digest(opened.tokenizer)
    if isinstance(begin_with, Translator) and isinstance(opened, PairSet):
        ours, theirs = (begin_with.source, begin_with.target), (opened.source, opened.target)
        return any(digest(one) != digest(other) for one, other in zip(ours, theirs, strict=True))
    return True


def check_feasible(recipe: AnyRecipe, opened: Data, device: str) -> None:
    """Check what would otherwise stop the run later: precision, sharding, enough text, a validation split."""
    if recipe.train.precision == "bfloat16" and device == "cpu":
        raise TrainingError("train.precision bfloat16 is for GPUs; on a CPU use float32")
    if recipe.train.sharded and not isinstance(recipe.model, XLConfig | Seq2SeqConfig | EncoderConfig):
        raise TrainingError(
            "train.sharded shards Transformers block by block; this one has no blocks to share out"
        )
    if isinstance(recipe, Recipe) and isinstance(opened, Corpus):
        _check_language(recipe, opened)
    elif isinstance(recipe, TranslationRecipe) and isinstance(opened, PairSet):
        if recipe.train.validate_every:
            opened.split("valid")
            if recipe.train.best == "bleu":
                opened.check_uncut("valid")
        _check_sources(recipe, opened)
    elif isinstance(recipe, EncoderRecipe):
        assert isinstance(opened, Corpus | ExampleSet)
        check_texts(recipe, opened)


def _check_sources(recipe: TranslationRecipe, pairs: PairSet) -> None:
    """Check that no source is longer than a Linformer's matrices are wide."""
    most = getattr(recipe.model, "max_source", 0)
    splits = ["train", *["valid"][: recipe.train.validate_every]]
    for split in splits if most else []:
        longest = int(pairs.lengths(split)[:, 0].max())
        if longest > most:
            raise TrainingError(
                f"a source of {split} has {longest} tokens with its end, and model.max_source is {most}; prepare the "
                f"pairs again with --longest {most - 1}, or use --set model.max_source={longest}"
            )


def check_lanes_divide(recipe: AnyRecipe, ranks: int) -> None:
    """Check that the lanes of each micro-batch can be divided equally among the ranks. (Texts need not be.)"""
    if not isinstance(recipe, Recipe) or not recipe.train.lanes // recipe.train.accumulate % ranks:
        return
    lanes, accumulate = recipe.train.lanes, recipe.train.accumulate
    divisors = [count for count in range(1, lanes + 1) if not lanes // accumulate % count]
    nearest = [
        max(count for count in divisors if count < ranks),
        *[count for count in divisors if count > ranks][:1],
    ]
    groups = f" in {accumulate} micro-batches" if accumulate > 1 else ""
    more_lanes = accumulate * ranks * (lanes // (accumulate * ranks) + 1)
    raise TrainingError(
        f"{lanes} lanes{groups} cannot be divided among {ranks} ranks; "
        f"start {' or '.join(map(str, nearest))} ranks, or use --set train.lanes={more_lanes}"
    )


def _check_language(recipe: Recipe, corpus: Corpus) -> None:
    train, model = recipe.train, recipe.model
    Lanes(corpus.stream("train"), train.lanes).segment(0, train.segment)  # is there enough text?
    if train.validate_every:
        corpus.stream("valid")
    if not isinstance(model, XLConfig):
        return
    limited = model.position_encoding.rows == "max_positions"
    if limited and (train.positions == "onward" or train.segment > model.max_positions):
        raise TrainingError(
            f"encoding {model.encoding!r} has {model.max_positions} positions and training would need more; "
            "train isolated segments: train.memory=0, train.positions='restart', and a segment that fits"
        )
