"""Training of encoders: the losses of all tasks, pre-training with masked words, and what a run begins with."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import segue
from encoder_runs import SHAPE, VOCAB, make_wordpiece_corpus, masked_recipe
from encoders import small_bert
from rank_runs import both, check_equal
from runs import make_corpus
from segue.checkpoint import CHECKPOINTS, checkpoints, load_encoder_bundle
from segue.config import EncoderConfig, HeadConfig
from segue.errors import SegueError
from segue.infer.masked import evaluate_masked
from segue.nn.task_encoder import MaskedHead, TaskEncoder
from segue.recipe import EncoderRecipe, recipe_of, recipe_toml
from segue.text.corpus import open_corpus
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.text.text_batches import IGNORED_LABEL, TextBatch
from segue.training.encoder_objective import EncoderObjective, targets
from segue.training.masked import MaskedSource
from segue.training.optim import build_optimizers
from segue.training.run import read_log
from segue.training.state import Counters

TASKS = [
    HeadConfig(task="masked"),
    HeadConfig(task="masked", next_sentence=True),
    HeadConfig(task="text", labels=("a", "b", "c")),
    HeadConfig(task="score"),
    HeadConfig(task="tags", labels=("O", "B", "I")),
    HeadConfig(task="span"),
]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wordpiece_corpus(tmp_path_factory.mktemp("pieces"))


def labels_of(task: HeadConfig, lengths: list[int], size: int) -> Tensor:
    torch.manual_seed(3)
    count = len(lengths)
    if task.task in ("masked", "tags"):
        labels = torch.randint(3, (count, 30))[:, :size].clone()
        for row, length in enumerate(lengths):
            labels[row, length:] = IGNORED_LABEL
        labels[:, ::2] = IGNORED_LABEL
        return labels
    if task.task == "span":
        return torch.tensor([[1, length - 1] for length in lengths])
    return torch.randn(count) if task.task == "score" else torch.randint(3, (count,))


def batch_for(task: HeadConfig, size: int = 12) -> TextBatch:
    """Three texts of up to ten tokens, padded to `size`; padding holds any ids, since they must not matter."""
    torch.manual_seed(2)
    lengths = [10, 7, 4]
    ids = torch.randint(5, VOCAB, (3, 30))[:, :size]
    mask = (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
    types = (torch.arange(size) > 2).long().expand(3, -1) * mask
    following = torch.tensor([0, 1, 1]) if task.next_sentence else None
    return TextBatch(torch.arange(3), ids, mask, types, labels_of(task, lengths, size), following)


def objective_for(task: HeadConfig) -> EncoderObjective:
    torch.manual_seed(0)
    model = TaskEncoder(EncoderConfig(**SHAPE), task).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return EncoderObjective(model)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task)
@torch.no_grad()
def test_the_loss_of_each_task_is_its_formula(task: HeadConfig) -> None:
    objective, batch = objective_for(task), batch_for(task)
    predicted = objective.model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    losses, _, auxiliary = objective(batch)
    total, count = 0.0, 0
    for row in range(3):
        if task.task in ("masked", "tags"):
            for place in range(12):
                label = int(batch.labels[row, place])
                if label != IGNORED_LABEL:
                    loss = -float(predicted.logits[row, place].log_softmax(dim=0)[label])
                    assert float(losses[row, place]) == pytest.approx(loss)
                    total, count = total + loss, count + 1
                else:
                    assert losses[row, place] == 0
            continue
        if task.task == "score":
            loss = float((predicted.logits[row, 0] - batch.labels[row]) ** 2)
        elif task.task == "text":
            loss = -float(predicted.logits[row].log_softmax(dim=0)[batch.labels[row]])
        else:
            here = int(batch.attention_mask[row].sum())
            ends = zip((predicted.start_logits, predicted.end_logits), batch.labels[row], strict=True)
            loss = -sum(float(end[row, :here].log_softmax(dim=0)[at]) for end, at in ends) / 2
        total, count = total + loss, count + 1
    assert float(losses.sum()) == pytest.approx(total)
    assert targets(task, batch) == count
    assert (auxiliary is not None) == task.next_sentence
    if auxiliary is not None:
        chances = predicted.seq_relationship_logits.log_softmax(dim=1)
        assert float(auxiliary) == pytest.approx(-float(chances[torch.arange(3), [0, 1, 1]].mean()))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task)
def test_padding_changes_nothing(task: HeadConfig) -> None:
    objective = objective_for(task)
    short, long = (objective(batch_for(task, size)) for size in (10, 20))
    torch.testing.assert_close(short.nats.sum(), long.nats.sum())
    torch.testing.assert_close(short.nats, long.nats[:, : short.nats.size(1)])
    assert (short.auxiliary is None) or torch.isclose(short.auxiliary, long.auxiliary)


@pytest.mark.parametrize("task", [TASKS[0], TASKS[4]], ids=lambda task: task.task)
def test_a_place_that_is_not_chosen_has_no_gradient_of_its_own(task: HeadConfig) -> None:
    objective, batch, states = objective_for(task), batch_for(task), []

    def keep(_: object, __: object, encoded: Any) -> None:
        encoded.last_hidden_state.retain_grad()
        states.append(encoded.last_hidden_state)

    objective.model.encoder.register_forward_hook(keep)
    objective(batch).nats.sum().backward()
    moved = states[0].grad.abs().sum(dim=2) > 0
    assert torch.equal(moved, batch.labels != IGNORED_LABEL)


def final_weights(run: Path) -> bytes:
    return (checkpoints(run)[-1] / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"short_steps": 7, "short_length": 12, "accumulate": 2},
        {"task": {"next_sentence": True}, "whole_words": True, "optimizer": "muon"},
    ],
    ids=["lengths", "next sentence"],
)
def test_a_run_resumes_to_the_last_bit_at_every_step(
    changes: dict[str, Any], pieces: Path, tmp_path: Path
) -> None:
    recipe = masked_recipe(steps=16, save_every=1, keep=99, **changes)
    whole = segue.train(recipe, pieces, tmp_path / "whole")
    counters = [load_counters(folder) for folder in checkpoints(whole)]
    assert counters[-1].epoch > 0, "an epoch ends on the way"
    for step in (6, 7, 13):
        part = shutil.copytree(whole, tmp_path / f"part-{step}")
        for folder in checkpoints(part)[step:]:
            shutil.rmtree(folder)
        segue.resume(part, changes=["train.save_every=0"])
        assert final_weights(part) == final_weights(whole), f"resumed after step {step}"


def load_counters(folder: Path) -> Counters:
    return Counters.model_validate_json((folder / "training.json").read_text())


def test_masks_are_drawn_anew_at_every_step_and_every_token_is_read_in_an_epoch(pieces: Path) -> None:
    source = MaskedSource(masked_recipe(), open_corpus(pieces))
    counters, seen, masks = Counters(), [], set()
    while counters.epoch == 0:
        batch, counters = source.draw(counters)
        again, _ = source.draw(Counters(step=counters.step, epoch=0, position=0))
        seen += batch.numbers.tolist() if counters.epoch == 0 else []
        masks.add(tuple((again.labels != IGNORED_LABEL).flatten().tolist()))
        counters = counters.model_copy(update={"step": counters.step + 1})
    texts = source.texts("train", 24)
    assert len(seen) == len(set(seen)) > len(texts) - 6, "each text at most once, and only a rest is left out"
    assert len(masks) == counters.step, "the same texts have other masks at another step"


def test_it_learns_and_its_run_is_an_encoder_bundle(pieces: Path, tmp_path: Path) -> None:
    """It begins with the pieces' frequencies, and learns more: which pieces stand beside each other."""
    settings: dict[str, Any] = {"steps": 90, "batch": 12, "optimizer": "muon", "learning_rate": 1e-2}
    shape = {"width": 32, "local_heads": 2}
    recipe = masked_recipe(model=shape, task={"next_sentence": True}, validate_every=90, **settings)
    run = segue.train(recipe, pieces, tmp_path / "run")
    log = read_log(run)
    losses = [event["nats"] for event in log if event["kind"] == "step"]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.07
    [valid] = [event for event in log if event["kind"] == "valid"]
    encoder = segue.load_encoder(run)
    assert encoder.embed(["the sea", "a ship"]).shape == (2, 32)
    texts = MaskedSource(recipe, open_corpus(pieces)).texts("valid", 24)
    score = evaluate_masked(encoder.model, texts)
    assert score.scores() == pytest.approx({name: valid[name] for name in score.scores()})
    assert 0 <= (score.next_sentence_accuracy or 0) <= 1
    assert recipe_of(segue.recipe.read_recipe(run / "recipe.toml")) == recipe


def test_a_run_begins_with_the_body_and_with_the_head_of_the_same_task(pieces: Path, tmp_path: Path) -> None:
    first = segue.train(masked_recipe(steps=2, task={"next_sentence": True}), pieces, tmp_path / "first")
    bundle = load_encoder_bundle(first)
    again = segue.train(masked_recipe(steps=1), pieces, tmp_path / "again", begin_with=bundle)
    begun = load_encoder_bundle(again / CHECKPOINTS / "step-00000000").model.state_dict()
    given = bundle.model.state_dict()
    assert {name for name in given if name not in begun} == {
        "head.next_sentence.weight",
        "head.next_sentence.bias",
    }
    assert all(torch.equal(weight, given[name]) for name, weight in begun.items())
    notes = [event["text"] for event in read_log(again) if event["kind"] == "note"]
    assert notes == ["the body and the head of masked words begin with the weights given"]
    bundle = segue.TextEncoder(TaskEncoder(bundle.model.config), bundle.tokenizer, bundle.reading)
    bundle.model.encoder.load_state_dict({name[8:]: w for name, w in given.items() if name[:8] == "encoder."})
    other = segue.train(masked_recipe(steps=1), pieces, tmp_path / "other", begin_with=bundle)
    begun = load_encoder_bundle(other / CHECKPOINTS / "step-00000000").model.state_dict()
    assert all(
        torch.equal(w, given[name]) == (name[:8] == "encoder.") for name, w in begun.items() if w.dim() > 1
    )
    assert "fresh: the head of masked words" in read_log(other)[0]["text"]


def test_masked_words_begin_with_their_frequencies(pieces: Path, tmp_path: Path) -> None:
    """The first loss is near the entropy of the pieces, not that of a uniform vocabulary."""
    run = segue.train(masked_recipe(steps=1), pieces, tmp_path / "run")
    ids = open_corpus(pieces).stream("train").ids
    shares = np.bincount(ids, minlength=VOCAB) / len(ids)
    entropy = -sum(share * math.log(share) for share in shares if share)
    first = next(event["nats"] for event in read_log(run) if event["kind"] == "step")
    assert entropy < math.log(VOCAB) - 0.3
    assert first < (entropy + math.log(VOCAB)) / 2


def test_norms_and_biases_do_not_decay_and_tables_are_not_muons() -> None:
    recipe = masked_recipe(optimizer="muon")
    model = TaskEncoder(recipe.model, recipe.task)
    muon, adamw = build_optimizers(model, recipe.train)
    names = {weight: name for name, weight in model.named_parameters()}
    inside = {names[weight] for group in muon.param_groups for weight in group["params"]}
    assert inside == {
        name for name, weight in model.named_parameters() if "blocks." in name and weight.dim() == 2
    } | {"encoder.pooler.weight"}
    for group in adamw.param_groups:
        dims = {weight.dim() for weight in group["params"]}
        assert len(dims) == 1
        assert (dims == {1}) == (group["weight_decay"] == 0)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "changes",
    [{"accumulate": 2, "task": {"next_sentence": True}}, {"sharded": True, "validate_every": 10}],
    ids=["ddp", "sharded"],
)
def test_ranks_that_share_texts_train_as_one_process(
    changes: dict[str, Any], pieces: Path, tmp_path: Path
) -> None:
    """Five texts in four or two parts, so that ranks have different numbers of them."""
    plain = {"dropout": 0.0, "attention_dropout": 0.0}
    recipe = masked_recipe(model=plain, batch=5, steps=20, **changes)
    check_equal(*both(recipe, pieces, tmp_path, 2), steps=20)


def changed(**values: Any) -> EncoderRecipe:
    recipe = masked_recipe().model_dump(mode="json")
    return recipe_of({name: {**group, **values.get(name, {})} for name, group in recipe.items()})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reading": {"max_length": 25}}, "max_length 25 is more than the encoder's 24 positions"),
        ({"reading": {"max_length": 7}}, "8 or more"),
        ({"train": {"short_steps": 3}}, "short_steps and short_length belong together"),
        ({"train": {"short_steps": 3, "short_length": 25}}, "found max_length=24 and short_length=25"),
        ({"train": {"batch": 2, "accumulate": 3}}, "a batch of 2 texts has no 3 micro-batches"),
        ({"train": {"masked": 1.0}}, "masked should be less than 1"),
        ({"train": {"ponder": 0.1}}, "train.ponder"),
        ({"task": {"next_sentence": True}, "model": {"types": 1}}, "use model.types=2"),
        ({"task": {"next_sentence": True}, "model": {"pooler": False}}, "needs a pooler"),
        ({"task": {"task": "span"}, "train": {"whole_words": True}}, "train.whole_words belongs to the task"),
        ({"train": {"lanes": 3}}, "EncoderTrainConfig has no 'lanes'|lanes"),
    ],
)
def test_recipes_that_cannot_be_are_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SegueError, match=message) as refused:
        changed(**values)
    assert "\n" not in str(refused.value)


def test_data_that_does_not_fit_is_refused_before_a_run_begins(pieces: Path, tmp_path: Path) -> None:
    words = make_corpus(tmp_path / "words", tokenizer="words")
    vocab = open_corpus(words).header.vocab
    one = make_wordpiece_corpus(tmp_path / "one", documents=1, words=600, valid=0, test=0)
    bert = segue.load_encoder(small_bert(tmp_path / "bert"))
    (tmp_path / "strange.txt").write_text("漢字 " * 99, encoding="utf-8")
    told = PrepareConfig(tokenizer="file", tokenizer_file=pieces / "tokenizer.json", valid=0, test=0)
    prepare(from_files("it", [tmp_path / "strange.txt"]), tmp_path / "strange", told, lambda *_: None)
    for recipe, data, begin, message in (
        (masked_recipe(), tmp_path / "strange", None, "holds no known piece to mask"),
        (masked_recipe(model={"vocab": vocab}), words, None, r"does not know \[CLS\]"),
        (masked_recipe(model={"vocab": 73}), pieces, None, "the model has 73 symbols"),
        (masked_recipe(task={"next_sentence": True}), one, None, "has 1 documents with text"),
        (masked_recipe(validate_every=5), one, None, "has no split 'valid'"),
        (masked_recipe(), pieces, bert, "the recipe's model is not the bundle's"),
    ):
        with pytest.raises(SegueError, match=message) as refused:
            segue.train(recipe, data, tmp_path / "run", begin_with=begin)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_labels_of_any_kind_come_back_from_toml(tmp_path: Path) -> None:
    labels = ("a", "ü😀", 'quo"te\\', "del\x7f\t", *(f"label-{number}" for number in range(300)))
    recipe = changed(task={"task": "text", "labels": labels})
    (tmp_path / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    assert recipe_of(segue.recipe.read_recipe(tmp_path / "recipe.toml")) == recipe
    head = TaskEncoder(recipe.model, recipe.task).head
    assert not isinstance(head, MaskedHead)
