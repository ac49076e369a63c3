"""Folders of Hugging Face's library, written and read without it; `test_hf.py` opens them with it."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import HEADS, LANGUAGE, TRANSLATION, WORDS, language_bundle, shaken, translator
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as TokenizerFile
from typer.testing import CliRunner

from encoders import RECORDED, small_encoder
from segue.checkpoint import Bundle, TextEncoder, Translator, load
from segue.cli import app
from segue.config import EncoderReading, HeadConfig, XLConfig
from segue.errors import ConfigError, InputError, SourceError
from segue.interop.bert import build_encoder
from segue.interop.bert_export import architecture, bert_config, bert_weights
from segue.interop.encoders import import_encoder
from segue.interop.files import export_bundle
from segue.interop.hf_folder import export_hf
from segue.interop.hf_tokenizer import (
    read_tokenizer,
    write_language_tokenizer,
    write_translator_tokenizer,
)
from segue.interop.importing import import_model
from segue.nn.xl import TransformerXL
from segue.text.learn import train_bpe
from segue.text.tokenizer import ByteTokenizer, Tokenizer, character_tokenizer, digest, word_tokenizer

LEARNED = train_bpe(iter([b"the cat sat on the mat, the dog on the log\n" * 20]), 280)
TOKENIZERS = [
    ByteTokenizer(),
    ByteTokenizer(b"\n abcde"),
    LEARNED,
    word_tokenizer(["<unk>", "<eos>", "a", "b"]),
    character_tokenizer(["<unk>", "a", "b"]),
]


def same_weights(ours: Any, theirs: Any) -> None:
    left, right = ours.state_dict(), theirs.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(weight, right[name]) for name, weight in left.items())


@pytest.mark.parametrize("kind", LANGUAGE)
def test_a_language_model_comes_back_to_the_bit(kind: str, tmp_path: Path) -> None:
    bundle = language_bundle(kind)
    assert export_hf(bundle, tmp_path / "hf") == []
    back = import_model(tmp_path / "hf")
    assert isinstance(back, Bundle) and back.tokenizer is not None  # noqa: PT018
    same_weights(bundle.model, back.model)
    assert (back.model.config, back.reading) == (bundle.model.config, bundle.reading)
    assert digest(back.tokenizer) == digest(ByteTokenizer())


@pytest.mark.parametrize("kind", TRANSLATION)
def test_a_translator_comes_back_to_the_bit(kind: str, tmp_path: Path) -> None:
    ours = translator(kind)
    export_hf(ours, tmp_path / "hf")
    back = import_model(tmp_path / "hf")
    assert isinstance(back, Translator)
    same_weights(ours.model, back.model)
    assert (back.lower, back.translating) == (True, ours.translating)
    assert [digest(back.source), digest(back.target)] == [digest(ours.source), digest(ours.target)]
    assert back.has_source_tokenizer == ours.has_source_tokenizer


@pytest.mark.parametrize("shape", [{}, {"activation": "gelu-tanh"}, {"shared_layers": True, "embedding": 4}])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: head and head.task)
def test_an_encoder_comes_back_to_the_bit(
    shape: dict[str, Any], head: HeadConfig | None, tmp_path: Path
) -> None:
    encoder = small_encoder(tmp_path, head, **shape)
    if head is not None and head.next_sentence and "shared_layers" in shape:
        with pytest.raises(SourceError, match="ALBERT has no head for next sentences"):
            export_hf(encoder, tmp_path / "hf")
        assert not (tmp_path / "hf").exists()
        return
    export_hf(encoder, tmp_path / "hf")
    back = import_encoder(tmp_path / "hf")
    same_weights(encoder.model, back.model)
    assert (back.model.config, back.model.task) == (encoder.model.config, head)
    assert back.reading == encoder.reading
    assert back.tokenizer.json() == encoder.tokenizer.json()


@pytest.mark.parametrize("name", ["bert-pretraining", "bert-text", "bert-tags", "bert-span", "albert-masked"])
def test_the_names_and_the_config_are_the_librarys(name: str, tmp_path: Path) -> None:
    """From weights that the library saved: written again, every tensor has the name and the numbers that it had."""
    with safe_open(RECORDED / f"{name}.safetensors", "pt") as file:
        names = [key for key in file.keys() if key.startswith("weights.")]  # noqa: SIM118
        weights = {key.removeprefix("weights."): file.get_tensor(key) for key in names}
        facts = file.metadata()
    config = json.loads(facts["config"]) | {"architectures": [facts["kind"]]}
    model = build_encoder(config, weights, name)
    encoder = TextEncoder(model, small_encoder(tmp_path).tokenizer, EncoderReading(max_length=8))
    written = bert_weights(encoder)
    tied = {key for key in weights if "predictions.decoder" in key}  # the table of words, and the bias again
    assert written.keys() == weights.keys() - tied - {"bert.embeddings.position_ids"}
    assert all(torch.equal(weight, weights[key]) for key, weight in written.items())
    described = bert_config(model.config, model.task, 0)
    assert architecture(model.config, model.task) == facts["kind"]
    for key in described.keys() - {"pad_token_id", "label2id", "classifier_dropout_prob", "architectures"}:
        assert described[key] == config.get(key, described[key]), key


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"window": 4}, "this encoder has a window of 4, which its layout cannot express"),
        ({"attention": "linformer", "rank": 4}, "linformer attention"),
        ({"head_width": 3}, "2 heads of 3 are not 8"),
        ({"embedding": 4}, "whose layers share their weights; this encoder's do not"),
    ],
)
def test_an_encoder_that_is_no_bert_is_refused(shape: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        export_hf(small_encoder(tmp_path, **shape), tmp_path / "hf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vocab.txt"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda one: f"{type(one).__name__}-{one.size}")
def test_a_tokenizer_comes_back_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    symbols = write_language_tokenizer(tmp_path, tokenizer)
    assert symbols.padding == tokenizer.size
    assert digest(read_tokenizer(tmp_path, tokenizer.size)) == digest(tokenizer)
    write_translator_tokenizer(tmp_path, tokenizer, lower=True)
    file = TokenizerFile.from_file(str(tmp_path / "tokenizer.json"))
    assert file.encode("A").ids == [*tokenizer.encode(b"a"), tokenizer.size + 1]
    assert digest(read_tokenizer(tmp_path, tokenizer.size, translator=True, lower=True)) == digest(tokenizer)


@given(text=st.text())
def test_a_byte_tokenizer_there_makes_our_ids(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    write_language_tokenizer(folder, ByteTokenizer())
    file = TokenizerFile.from_file(str(folder / "tokenizer.json"))
    file.encode_special_tokens = True  # what tokenizer_config.json asks for
    ids = file.encode(text).ids
    assert ids == list(text.encode())
    assert file.decode(ids, skip_special_tokens=False) == text


def test_the_commands_and_what_they_say(tmp_path: Path) -> None:
    language_bundle("xl").save(tmp_path / "b")
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "b"), "-o", str(tmp_path / "hf"), "--to", "hf"])
    assert ran.exit_code == 0, ran.output
    assert "written in the hf layout" in ran.output
    ran = CliRunner().invoke(app, ["import", str(tmp_path / "hf"), "-o", str(tmp_path / "again")])
    assert ran.exit_code == 0, ran.output
    same_weights(load(tmp_path / "b").model, load(tmp_path / "again").model)
    small_encoder(tmp_path).save(tmp_path / "e")
    ran = CliRunner().invoke(app, ["export", str(tmp_path / "e"), "-o", str(tmp_path / "bert"), "--to", "hf"])
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(app, ["import", str(tmp_path / "bert"), "-o", str(tmp_path / "e2")])
    assert ran.exit_code == 0, ran.output
    assert "head: none" in ran.output


@pytest.mark.parametrize("layout", ["reference", "huggingface"])
def test_a_config_without_a_type_is_no_bert(layout: str, tmp_path: Path) -> None:
    """The authors' config names no model_type: it once went the way of encoders."""
    bundle = Bundle(
        shaken(TransformerXL(XLConfig(vocab=256, width=16, heads=2, layers=2))), language_bundle("xl").reading
    )
    export_bundle(bundle, tmp_path / layout, layout)
    ran = CliRunner().invoke(app, ["import", str(tmp_path / layout), "-o", str(tmp_path / "back")])
    assert ran.exit_code == 0, ran.output
    same_weights(bundle.model, load(tmp_path / "back").model)


def changed(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def test_folders_that_contradict_themselves_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    export_hf(language_bundle("xl"), folder)
    shape = json.loads((folder / "config.json").read_text())["model"]
    changed(folder, model=shape | {"layers": 3})
    with pytest.raises(SourceError, match=r"hf lacks the tensor blocks.2.*, which its config asks"):
        import_model(folder)
    changed(folder, model=shape | {"width": 10**9})
    with pytest.raises(SourceError, match="does it belong to them"):
        import_model(folder)
    changed(folder, model=shape | {"kind": "mystery"})
    with pytest.raises(ConfigError, match="model.kind should be one of"):
        import_model(folder)
    changed(folder, model=shape, reading=None)
    with pytest.raises(ConfigError, match="reading"):
        import_model(folder)
    changed(folder, reading={"segment": 8, "reach": {"memory": 16}})
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.more": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(SourceError, match="holds a tensor more, which its config does not know"):
        import_model(folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(SourceError, match="is not a safetensors file"):
        import_model(folder)


def test_weights_in_several_files(tmp_path: Path) -> None:
    bundle, folder = language_bundle("xl"), tmp_path / "hf"
    export_hf(bundle, folder)
    weights = load_file(folder / "model.safetensors")
    homes = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(weights)}
    for shard in set(homes.values()):
        save_file({name: one for name, one in weights.items() if homes[name] == shard}, folder / shard)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": homes}))
    same_weights(bundle.model, import_model(folder).model)
    index.write_text(json.dumps({"weight_map": homes | {"model.x": "model-0.safetensors"}}))
    with pytest.raises(SourceError, match="names model.x, which none of its files has"):
        import_model(folder)
    index.write_text(json.dumps({"weight_map": {"model.x": "../elsewhere"}}))
    with pytest.raises(SourceError, match="should have a weight_map from tensors to files beside it"):
        import_model(folder)
    index.write_text(json.dumps({"weight_map": homes | {"model.x": "model-2.safetensors"}}))
    with pytest.raises(SourceError, match=r"model-2.safetensors is not a file"):
        import_model(folder)


def test_a_vocabulary_replaces_the_tokenizer(tmp_path: Path) -> None:
    export_hf(language_bundle("xl"), tmp_path / "hf")
    (tmp_path / "words.txt").write_text("\n".join(f"w{number}" for number in range(256)))
    named = import_model(tmp_path / "hf", vocab=tmp_path / "words.txt")
    assert isinstance(named, Bundle) and named.tokenizer is not None  # noqa: PT018
    assert list(named.tokenizer.encode(b"w7 w9")) == [7, 9]
    (tmp_path / "hf" / "tokenizer.json").unlink()
    bare = import_model(tmp_path / "hf")
    assert isinstance(bare, Bundle) and bare.tokenizer is None  # noqa: PT018
    export_hf(translator("one vocabulary"), tmp_path / "tr")
    with pytest.raises(SourceError, match="are in its folder; leave out the vocabulary"):
        import_model(tmp_path / "tr", vocab=tmp_path / "words.txt")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    export_hf(language_bundle("xl"), tmp_path / "hf")
    write_language_tokenizer(tmp_path / "hf", LEARNED)
    with pytest.raises(SourceError, match="273 symbols and its model 256; do they belong together"):
        import_model(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(SourceError, match="is no tokenizer.json"):
        import_model(tmp_path / "hf")
    export_hf(translator("two vocabularies"), tmp_path / "two")
    (tmp_path / "two" / "target" / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="its source has a vocabulary of its own"):
        import_model(tmp_path / "two")
    (tmp_path / "two" / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match="has no tokenizer.json, which a translator needs"):
        import_model(tmp_path / "two")


def test_ids_with_gaps_are_refused(tmp_path: Path) -> None:
    file = json.loads(word_tokenizer(WORDS).json())
    file["model"]["vocab"] = {word: 2 * place for place, word in enumerate(WORDS)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    gaps = read_tokenizer(tmp_path, 100)
    with pytest.raises(SourceError, match="the ids of this tokenizer have gaps"):
        write_language_tokenizer(tmp_path, gaps)


@pytest.mark.parametrize(
    ("module", "library", "message"),
    [
        ("segue.hf", "transformers", "segue.hf needs the hf extra: pip install 'segue-lm\\[hf\\]'"),
        ("segue.infer.lm_eval", "lm_eval", "need the eval extra: pip install 'segue-lm\\[eval\\]'"),
    ],
)
def test_a_missing_library_is_one_line(
    module: str, library: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(InputError, match=message):
        importlib.import_module(module)
