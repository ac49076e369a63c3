"""Hugging Face's library opens what we write and does with it what we do: `make test-interop` has it."""

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import HEADS, LANGUAGE, TRANSLATION, language_bundle, translator
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from encoders import small_encoder
from segue.checkpoint import Bundle, Translator
from segue.config import HeadConfig
from segue.errors import InputError
from segue.infer.translate import translate
from segue.interop.encoders import import_encoder
from segue.interop.hf_folder import export_hf
from segue.interop.importing import import_model
from segue.nn.models import build_language_model
from segue.text.special_tokens import special_tokens
from segue.text.tokenizer import digest

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]  # the library warns of itself
TEXT = "Once upon a time there was a king, and a queen"
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def opened(kind: str, folder: Path) -> tuple[Bundle, Any, Any]:
    """The bundle, and the library's model and tokenizer of its folder."""
    transformers = pytest.importorskip("transformers")
    import segue.hf  # noqa: F401

    bundle = language_bundle(kind)
    export_hf(bundle, folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return bundle, model, transformers.AutoTokenizer.from_pretrained(folder)


def greedy(bundle: Bundle, text: str, count: int) -> list[int]:
    session = bundle.session()
    session.feed(text)
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(int(session.logprobs().argmax()))
        session.read(chosen[-1:])
    return chosen


@pytest.mark.parametrize("kind", LANGUAGE)
def test_logits_are_ours_however_a_stream_is_cut(kind: str, tmp_path: Path) -> None:
    bundle, model, tokenizer = opened(kind, tmp_path / "hf")
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        whole = model(ids)
        for cuts in ([5, 6, 15], [1, 2, 3, 4, 40], [30]):
            parts, state = [], None
            for begin, end in pairwise([0, *cuts, ids.size(1)]):
                output = model(ids[:, begin:end], state=state)
                state, parts = output.state, [*parts, output.logits]
            assert_close(torch.cat(parts, dim=1), whole.logits, **CLOSE)
    assert_close(model(ids).logits, whole.logits, **CLOSE)  # with a gradient: another way to read
    session = bundle.session()
    for place, number in enumerate(ids[0].tolist()):
        session.read([number])
        assert_close(whole.logits[0, place], session.logprobs(), **CLOSE)


@pytest.mark.parametrize("kind", LANGUAGE)
def test_generation_is_ours_batched_continued_and_with_beams(kind: str, tmp_path: Path) -> None:
    bundle, model, tokenizer = opened(kind, tmp_path / "hf")
    texts = [TEXT, "hi"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert batch.attention_mask[1, 0] == 0  # padded on the left
    found = model.generate(**batch, max_new_tokens=20, do_sample=False)
    for row, text in zip(found, texts, strict=True):
        assert row[-20:].tolist() == greedy(bundle, text, 20)
    first = model.generate(**batch, max_new_tokens=7, do_sample=False, return_dict_in_generate=True)
    rest = model.generate(
        first.sequences[:, -1:], state=first.past_key_values, max_new_tokens=13, do_sample=False
    )
    assert torch.equal(torch.cat([first.sequences, rest[:, 1:]], dim=1), found)
    beams = {"num_beams": 3, "max_new_tokens": 12, "do_sample": False}
    cached, again = model.generate(**batch, **beams), model.generate(**batch, **beams, use_cache=False)
    assert torch.equal(cached, again)
    more = model.generate(first.sequences[:, -1:], state=first.past_key_values, **beams)
    assert more.shape == (2, 13)
    samples = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 9}
    torch.manual_seed(0)
    sampled = model.generate(**batch, **samples)
    torch.manual_seed(0)
    assert torch.equal(sampled, model.generate(**batch, **samples, use_cache=False))


def test_memory_stays_at_its_size_over_calls(tmp_path: Path) -> None:
    _, model, tokenizer = opened("xl", tmp_path / "hf")
    output, state = tokenizer(TEXT, return_tensors="pt").input_ids, None
    for _ in range(5):
        said = model.generate(output, state=state, max_new_tokens=30, return_dict_in_generate=True)
        output, state = said.sequences[:, -1:], said.past_key_values
        assert state.memory.size == 16
    assert int(state.memory.seen[0]) == len(TEXT) + 5 * 30 - 1


@pytest.mark.parametrize("kind", LANGUAGE)
def test_what_save_pretrained_writes_comes_back(kind: str, tmp_path: Path) -> None:
    bundle, model, tokenizer = opened(kind, tmp_path / "hf")
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    assert not list((tmp_path / "again").glob("*.bin"))
    back = import_model(tmp_path / "again")
    assert isinstance(back, Bundle) and back.tokenizer is not None and bundle.tokenizer is not None  # noqa: PT018
    left, right = bundle.model.state_dict(), back.model.state_dict()  # a tied weight is there once
    assert left.keys() == right.keys()
    assert all(torch.equal(weight, right[name]) for name, weight in left.items())
    assert back.reading == bundle.reading
    assert digest(back.tokenizer) == digest(bundle.tokenizer)


def test_pipeline_and_streamer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    bundle, model, tokenizer = opened("xl", tmp_path / "hf")
    assert bundle.tokenizer is not None
    wanted = bundle.tokenizer.decode([*TEXT.encode(), *greedy(bundle, TEXT, 6)]).decode(errors="replace")
    write = transformers.pipeline("text-generation", model=str(tmp_path / "hf"))
    assert write(TEXT, max_new_tokens=6, do_sample=False)[0]["generated_text"] == wanted
    two = write([TEXT, "hi"], max_new_tokens=6, do_sample=False, batch_size=2)
    assert two[0][0]["generated_text"] == wanted
    capsys.readouterr()
    model.generate(
        **tokenizer(TEXT, return_tensors="pt"), streamer=transformers.TextStreamer(tokenizer),
        max_new_tokens=6, do_sample=False,
    )  # fmt: skip
    assert capsys.readouterr().out.strip("\n") == wanted.strip("\n")


@pytest.mark.parametrize("kind", ["xl", "kernel", "universal", "without memory"])
def test_gradient_checkpointing_changes_no_gradient(kind: str, tmp_path: Path) -> None:
    _, model, tokenizer = opened(kind, tmp_path / "hf")
    batch = tokenizer([TEXT[:8], "hi"], return_tensors="pt", padding=True)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model.train()(**batch, labels=labels).loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
        model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert_close(gradients[0], gradients[1])
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def test_the_trainer_learns_and_its_loss_is_ours(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    _, model, tokenizer = opened("xl", tmp_path / "hf")
    rows = [tokenizer(TEXT[begin : begin + size]) for begin, size in ((0, 40), (3, 20), (9, 30), (5, 9))]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=30, learning_rate=1e-2, per_device_train_batch_size=2,
        report_to=[], use_cpu=True, save_steps=30, logging_steps=10, gradient_checkpointing=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=settings, train_dataset=rows, eval_dataset=rows[:1],
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )  # fmt: skip
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 2
    trained = import_model(tmp_path / "run" / "checkpoint-30")  # as the Trainer saved it
    assert isinstance(trained, Bundle)
    assert sum(trained.session().feed(TEXT[:40])) / 39 == pytest.approx(after, abs=1e-5)


def test_other_ways_to_hold_a_model(tmp_path: Path) -> None:
    """Half precision, weights that change, copies, and fresh weights of a config."""
    transformers = pytest.importorskip("transformers")
    _, model, tokenizer = opened("xl", tmp_path / "hf")
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        before = model(ids).logits
        half = type(model).from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
        assert_close(half(ids).logits.float(), before, atol=0.2, rtol=0.1)
        assert_close(copy.deepcopy(model)(ids).logits, before)
        assert_close(model.double()(ids).logits.float(), before, **CLOSE)
        for weight in model.parameters():
            weight.data *= 1.5  # unnoticed by versions
        assert not torch.allclose(model.eval()(ids).logits.float(), before)
    half.save_pretrained(tmp_path / "half")
    kept = import_model(tmp_path / "half")
    assert next(kept.model.parameters()).dtype == torch.bfloat16
    torch.manual_seed(0)
    fresh = transformers.AutoModelForCausalLM.from_config(model.config)
    torch.manual_seed(0)
    wanted = build_language_model(LANGUAGE["xl"])
    assert all(
        torch.equal(left, right) for left, right in zip(fresh.parameters(), wanted.parameters(), strict=True)
    )


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    _, model, tokenizer = opened("xl", tmp_path / "hf")
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        state = model(ids).state
    with pytest.raises(InputError, match="the state has 1 lanes and input_ids 2"):
        model(ids.repeat(2, 1), state=state)
    with pytest.raises(InputError, match="attention_mask has gaps"):
        model(ids[:, :3], attention_mask=torch.tensor([[1, 0, 1]]))
    with pytest.raises(InputError, match=r"shape of the tokens, \(1, 3\); found \(1, 2\)"):
        model(ids[:, :3], attention_mask=torch.ones(1, 2))
    with pytest.raises(InputError, match="row 1 of input_ids is padding alone"):
        model.generate(**tokenizer(["a", ""], return_tensors="pt", padding=True), max_new_tokens=2)
    with pytest.raises(InputError, match="found 999"):
        model(torch.tensor([[1, 999]]))
    with pytest.raises(InputError, match="input_ids have no tokens"):
        model.generate(**tokenizer([""], return_tensors="pt"), max_new_tokens=2)
    with pytest.raises(InputError, match="as state=, not as past_key_values="):
        model.generate(ids[:, -1:], past_key_values=state, max_new_tokens=2)
    with pytest.raises(InputError, match="attention weights are not returned"):
        model(ids, output_attentions=True)
    with pytest.raises(InputError, match="input_ids; found none"):
        model(inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(InputError, match="read without gradient"):
        model.train()(ids, state=state)
    with pytest.raises(InputError, match="fixed size"):
        model.resize_token_embeddings(300)
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    for change in ({"model.more": torch.zeros(1)}, {"model.blocks.0.attention.out.weight": None}):
        wrong = {name: one for name, one in (weights | change).items() if one is not None}
        save_file(wrong, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(
            InputError, match=r"(also holds|lacks) the tensor model\.(more|blocks.0.attention.out)"
        ):
            type(model).from_pretrained(tmp_path / "hf")
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    values["model"]["kind"] = "mystery"
    (tmp_path / "hf" / "config.json").write_text(json.dumps(values))
    with pytest.raises(Exception, match="model.kind should be one of"):
        type(model).from_pretrained(tmp_path / "hf")


@pytest.mark.parametrize("kind", TRANSLATION)
def test_translations_are_ours(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import segue.hf  # noqa: F401

    ours = translator(kind)
    export_hf(ours, tmp_path / "hf")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    source = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    target = source
    if ours.has_source_tokenizer:
        target = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", subfolder="target")
    lines = ["W3 w4 w5 w1", "w7", "w1 w2 w3 w4 w5 w6 w7 w8", "zz w3"]
    batch = source(lines, return_tensors="pt", padding=True)
    wanted = [texts[0].text for texts in translate(ours, [line.encode() for line in lines])]
    assert target.batch_decode(model.generate(**batch), skip_special_tokens=True) == wanted
    beams = model.generate(**batch, num_beams=3)
    assert torch.equal(beams, model.generate(**batch, num_beams=3, use_cache=False))
    labels = target(["w1 w2", "w3 w4 w5", "w6", "w7"], return_tensors="pt", padding=True)
    labels = labels.input_ids.masked_fill(labels.attention_mask == 0, -100)
    loss = model.train()(**batch, labels=labels).loss
    loss.backward()
    wanted_loss = _loss(ours, batch, labels)
    assert_close(loss.detach(), wanted_loss, **CLOSE)
    gradients = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    if kind != "recurrent":
        model.gradient_checkpointing_enable()
        model.zero_grad()
        model(**batch, labels=labels).loss.backward()
        assert_close([weight.grad for weight in model.parameters() if weight.grad is not None], gradients)
    else:
        with pytest.raises(InputError, match="no Transformer layers"):
            model.gradient_checkpointing_enable()
    model.save_pretrained(tmp_path / "again")
    source.save_pretrained(tmp_path / "again")
    if target is not source:
        target.save_pretrained(tmp_path / "again" / "target")
    back = import_model(tmp_path / "again")
    assert isinstance(back, Translator)
    right = back.model.state_dict()
    assert all(torch.equal(weight, right[name]) for name, weight in ours.model.state_dict().items())
    assert [digest(back.source), digest(back.target)] == [digest(ours.source), digest(ours.target)]


def _loss(ours: Translator, batch: Any, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of labels, whose decoder reads its start and all but the last."""
    start, end = special_tokens(ours.model.config.vocab)
    read = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1).where(
        labels != -100, end
    )
    with torch.no_grad():
        memory = ours.model.start(batch.input_ids, batch.attention_mask.sum(dim=1))
        hidden, _ = ours.model(read, memory)
        return ours.model.nats(hidden, labels.clamp(min=0))[labels != -100].mean()


@pytest.mark.parametrize("shape", [{}, {"shared_layers": True, "embedding": 4}, {"shared_layers": True}])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head and head.task)
def test_the_stock_bert_computes_what_our_encoder_does(
    shape: dict[str, Any], head: HeadConfig | None, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    if head is not None and head.next_sentence and shape:
        pytest.skip("ALBERT has no such head")
    encoder = small_encoder(tmp_path, head, **shape)
    export_hf(encoder, tmp_path / "hf")
    (name,) = json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"]
    kind = getattr(transformers, name)
    theirs, loaded = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not loaded["missing_keys"]
    assert all("pooler" in key for key in loaded["unexpected_keys"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    batch = tokenizer(["the animal did", "untired street . not"], padding=True, return_tensors="pt")
    with torch.no_grad():
        read = theirs(**batch)
        inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
        wanted: Any = encoder.model(*inputs) if head else encoder.model.encoder(*inputs)
    seen, compared = batch.attention_mask.bool(), 0
    for key in ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits",
                "prediction_logits", "seq_relationship_logits"):  # fmt: skip
        if getattr(read, key, None) is not None:
            left, right = getattr(read, key), getattr(wanted, key)
            by_token = left.shape[:2] == seen.shape
            assert_close(left[seen] if by_token else left, right[seen] if by_token else right, **CLOSE)
            compared += 1
    assert compared >= 1
    auto = transformers.AutoModel.from_pretrained(tmp_path / "hf")
    assert type(auto).__name__ in ("BertModel", "AlbertModel")
    theirs.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    right = import_encoder(tmp_path / "again").model.state_dict()
    assert all(torch.equal(tensor, encoder.model.state_dict()[key]) for key, tensor in right.items())
