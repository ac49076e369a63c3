"""What must hold before a run begins: that its parts belong together, and that nothing will stop it later."""

from segue.checkpoint import Bundle, Translator
from segue.config import Seq2SeqConfig, XLConfig
from segue.errors import TrainingError
from segue.recipe import Recipe, TranslationRecipe
from segue.text.corpus import Corpus
from segue.text.lanes import Lanes
from segue.text.pairs import PairSet
from segue.text.tokenizer import digest


def check_fit(
    recipe: Recipe | TranslationRecipe, opened: Corpus | PairSet, begin_with: Bundle | Translator | None
) -> None:
    """Model, data, and the bundle that it begins with belong together."""
    vocab, known = recipe.model.vocab, opened.header.vocab
    if vocab != known:
        raise TrainingError(
            f"the model has {vocab:,} symbols and {opened.folder} {known:,}; "
            f"prepare it with the model's tokenizer, or use --set model.vocab={known}"
        )
    if isinstance(recipe, TranslationRecipe) and isinstance(opened, PairSet):
        own = opened.header.source_vocab
        if recipe.model.source_vocab != own:
            raise TrainingError(
                f"the model has {recipe.model.source_vocab:,} symbols of the source and {opened.folder} {own:,} "
                f"(0: shared with the target); use --set model.source_vocab={own}"
            )
    if begin_with is None:
        return
    if begin_with.model.config.model_dump(
        exclude={"dropout", "attention_dropout"}
    ) != recipe.model.model_dump(exclude={"dropout", "attention_dropout"}):
        raise TrainingError("the recipe's model is not the bundle's; fine-tuning keeps the shape it finds")
    if _strange(begin_with, opened):
        raise TrainingError(
            f"{opened.folder} was not prepared with the bundle's tokenizer; "
            "prepare it again with --tokenizer file --tokenizer-file BUNDLE/tokenizer.json"
        )


def _strange(begin_with: Bundle | Translator, opened: Corpus | PairSet) -> bool:
    """Whether the data was made with another tokenizer than the bundle's."""
    if isinstance(begin_with, Bundle) and isinstance(opened, Corpus):
        return begin_with.tokenizer is not None and digest(begin_with.tokenizer) != digest(opened.tokenizer)
    if isinstance(begin_with, Translator) and isinstance(opened, PairSet):
        ours, theirs = (begin_with.source, begin_with.target), (opened.source, opened.target)
        return any(digest(one) != digest(other) for one, other in zip(ours, theirs, strict=True))
    return True


def check_feasible(recipe: Recipe | TranslationRecipe, opened: Corpus | PairSet, device: str) -> None:
    """What would stop the run later is better known before it begins."""
    if recipe.train.precision == "bfloat16" and device == "cpu":
        raise TrainingError("train.precision bfloat16 is for GPUs; on a CPU use float32")
    if recipe.train.sharded and not isinstance(recipe.model, XLConfig | Seq2SeqConfig):
        raise TrainingError("train.sharded shares out the blocks of a Transformer; this model has none")
    if isinstance(recipe, Recipe) and isinstance(opened, Corpus):
        _check_language(recipe, opened)
    elif (
        isinstance(recipe, TranslationRecipe) and isinstance(opened, PairSet) and recipe.train.validate_every
    ):
        opened.split("valid")
        if recipe.train.best == "bleu":
            opened.check_whole("valid")


def check_dealt(recipe: Recipe | TranslationRecipe, ranks: int) -> None:
    """Every rank gets as many whole lanes as every other, in as many chunks."""
    if isinstance(recipe, TranslationRecipe) or not recipe.train.lanes // recipe.train.accumulate % ranks:
        return
    lanes, accumulate = recipe.train.lanes, recipe.train.accumulate
    fitting = [count for count in range(1, lanes + 1) if not lanes // accumulate % count]
    near = [
        max(count for count in fitting if count < ranks),
        *[count for count in fitting if count > ranks][:1],
    ]
    chunks = f" in {accumulate} chunks" if accumulate > 1 else ""
    more = accumulate * ranks * (lanes // (accumulate * ranks) + 1)
    raise TrainingError(
        f"{lanes} lanes{chunks} cannot be dealt to {ranks} ranks; start {' or '.join(map(str, near))} ranks, "
        f"or use --set train.lanes={more}"
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
            f"encoding {model.encoding!r} has {model.max_positions} positions and training never stops counting; "
            "train isolated segments: train.memory=0, train.positions='restart', and a segment that fits"
        )
