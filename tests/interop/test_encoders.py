"""Encoders from anywhere: every layout gives the same vectors, and what is something else is told in one line.

Real weights are tried where the variable SEGUE_WEIGHTS names a folder with minilm, rxnfp and rxnmapper in it, each the
folder with config.json of the package that `tests/reference/encoders/record.py` names.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

import segue
from encoders import PIECES, RECORDED, small_bert, small_encoder
from segue.config import HeadConfig
from segue.errors import SourceError
from segue.infer.fill import fill
from segue.interop.bert import BERT
from segue.interop.encoders import import_encoder, is_encoder_folder
from segue.interop.onnx_weights import Node, with_names
from segue.nn.task_encoder import MaskedHead

REAL = Path(os.environ.get("SEGUE_WEIGHTS", "/nowhere"))
needs_weights = pytest.mark.skipif(not REAL.is_dir(), reason="needs real weights: set SEGUE_WEIGHTS")
TEXTS = ["the animal", "untired street .", "did not cross"]


def as_sentence_transformer(folder: Path, pooling: dict[str, object], *more: str) -> Path:
    kinds = ["Transformer", "Pooling", "Normalize", *more]
    paths = ["", "1_Pooling", "2_Normalize", *("3_More" for _ in more)]
    rows = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in zip(kinds, paths, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 7, "do_lower_case": True})
    )
    return folder


def test_a_folder_a_bin_file_and_a_bundle_give_the_same_states(tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "bert")
    assert is_encoder_folder(folder)
    first = segue.load_encoder(folder)
    assert (first.reading.max_length, first.reading.pooling, first.reading.normalize) == (14, "mean", False)
    assert first.model.task == HeadConfig(task="masked", next_sentence=True)
    wanted = first(TEXTS, TEXTS[::-1])
    first.save(tmp_path / "bundle")
    weights = load_file(folder / "model.safetensors")
    old_names = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma"): weight for name, weight in weights.items()
    }
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "model.safetensors").unlink()
    torch.save(old_names, other / "pytorch_model.bin")
    for path in (tmp_path / "bundle", other):
        again = segue.load_encoder(path)
        assert_close(dict(again.model.state_dict()), dict(first.model.state_dict()), rtol=0, atol=0)
        states = again(TEXTS, TEXTS[::-1])
        assert_close(states.last_hidden_state, wanted.last_hidden_state)
        assert_close(states.pooler_output, wanted.pooler_output)


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_sentence_transformers_settings_are_read(
    pooling: dict[str, object], kind: str, tmp_path: Path
) -> None:
    folder = as_sentence_transformer(small_bert(tmp_path), pooling)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    encoder = segue.load_encoder(folder)
    assert (encoder.reading.max_length, encoder.reading.pooling, encoder.reading.normalize) == (7, kind, True)
    assert_close(encoder.embed(["THE Animal"]), encoder.embed(["the animal"]))
    (folder / "sentence_bert_config.json").unlink()
    (pieces,) = segue.load_encoder(folder).tokenizer.pieces(["THE animal"], 9)
    assert [PIECES[number] for number in pieces.ids] == ["[CLS]", "[UNK]", "animal", "[SEP]"]


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "bert")

    def refused(match: str) -> None:
        with pytest.raises(SourceError, match=match) as caught:
            segue.load_encoder(folder)
        assert "\n" not in str(caught.value)

    as_sentence_transformer(folder, {"pooling_mode_max_tokens": True})
    refused("the pooling is pooling_mode_max_tokens; cls and mean are supported")
    as_sentence_transformer(folder, {"pooling_mode": ["x"]})
    refused("the pooling is")
    as_sentence_transformer(folder, {"pooling_mode": "mean"}, "Dense")
    refused("has the modules Transformer, Pooling, Normalize, Dense")
    (folder / "modules.json").write_text('[{"type": "x.Transformer", "path": "../../etc"}]')
    refused("names a path outside of its folder")
    (folder / "modules.json").write_text('{"a": 1}')
    refused("should list objects")
    (folder / "modules.json").unlink()
    (folder / "vocab.txt").write_text("\n".join([*PIECES, *map(str, range(30))]))
    refused("has 45 symbols and its model 31")
    (folder / "vocab.txt").unlink()
    refused("neither tokenizer.json nor vocab.txt")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    refused("they have more than 2 layers")
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "swish"}))
    refused("hidden_act is 'swish'")
    with pytest.raises(SourceError, match="no folder and no .onnx file"):
        import_encoder(folder / "config.json")
    weights = load_file(folder / "model.safetensors")
    weights["cls.predictions.decoder.weight"] = weights["cls.predictions.decoder.weight"] + 1
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    refused("table of words of its own; only a tied one is supported")


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    folder = small_bert(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"module": torch.nn.Linear(1, 1)}, folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match="nothing is ever unpickled"):
        segue.load_encoder(folder)


def exported(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[Node]]:
    """What an exporter makes of linear layers: their transposed matrices lose their names."""
    kept: dict[str, Tensor] = {}
    nodes = []
    for number, (name, weight) in enumerate(weights.items()):
        if not name.endswith(".weight") or weight.dim() == 1 or "embeddings" in name:
            kept[name] = weight
            continue
        kept[f"onnx::MatMul_{number}"] = weight.T
        bias = name.replace(".weight", ".bias")
        nodes.append(Node("MatMul", ("states", f"onnx::MatMul_{number}"), (f"product_{number}",)))
        nodes.append(Node("Add", (bias, f"product_{number}"), (f"sum_{number}",)))
    return kept, nodes


def test_matrices_of_an_onnx_graph_get_their_names_back(tmp_path: Path) -> None:
    weights = load_file(small_bert(tmp_path) / "model.safetensors")
    linear = {name: weight for name, weight in weights.items() if not name.startswith("cls.")}
    kept, nodes = exported(linear)
    assert sum(name.startswith("onnx::") for name in kept) == len(BERT.names) * 3 - 6 + 2 * 3 + 1
    named = with_names(kept, [Node("Add", ("one", "other"), ("residual",)), *nodes])
    assert_close(named, linear, rtol=0, atol=0)


def test_an_onnx_file_is_read_or_the_package_asked_for(tmp_path: Path) -> None:
    folder = small_bert(tmp_path)
    weights = load_file(folder / "model.safetensors")
    wanted = segue.load_encoder(folder)(TEXTS).last_hidden_state
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    file = folder / "onnx" / "model.onnx"
    file.write_bytes(b"no model")
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError:
        with pytest.raises(SourceError, match=r"needs the onnx package: pip install 'segue-lm\[onnx\]'"):
            segue.load_encoder(folder)
        return
    with pytest.raises(SourceError, match="is no ONNX file that can be read"):
        segue.load_encoder(folder)
    kept, nodes = exported({name: weight for name, weight in weights.items() if not name.startswith("cls.")})
    graph = helper.make_graph(
        [helper.make_node(node.kind, list(node.inputs), list(node.outputs)) for node in nodes],
        "bert",
        [],
        [],
        [numpy_helper.from_array(weight.contiguous().numpy(), name) for name, weight in kept.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)]), str(file))
    with pytest.raises(SourceError, match="has opset 8; 9 or newer is wanted"):
        segue.load_encoder(folder)
    onnx.save(helper.make_model(graph), str(file))
    for path in (folder, file):
        assert_close(segue.load_encoder(path)(TEXTS).last_hidden_state, wanted)


def test_masks_are_filled_by_the_head(tmp_path: Path) -> None:
    encoder = small_encoder(tmp_path, HeadConfig(task="masked"))
    text = "the [MASK] did not [MASK] ."
    first, second = fill(encoder, [text], top=15)[0]
    assert abs(sum(guess.probability for guess in first) - 1) < 1e-5
    (pieces,) = encoder.tokenizer.pieces([text], 9)
    places = [place for place, number in enumerate(pieces.ids) if PIECES[number] == "[MASK]"]
    with torch.no_grad():
        chances = encoder.model(torch.tensor([pieces.ids])).logits[0, places].softmax(dim=-1)
    for guesses, row in zip((first, second), chances, strict=True):
        assert guesses[0].piece == PIECES[int(row.argmax())]
        assert abs(guesses[0].probability - float(row.max())) < 1e-6
    assert fill(encoder, ["the animal"]) == [[]]


def recorded(name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(RECORDED / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata())  # noqa: SIM118


@needs_weights
def test_minilm_gives_the_vectors_of_hugging_face() -> None:
    tensors, facts = recorded("minilm")
    encoder, texts = segue.load_encoder(REAL / "minilm"), json.loads(facts["texts"])
    batch = encoder.tokenizer.encode(texts, 256)
    assert torch.equal(torch.from_numpy(batch.input_ids), tensors["input_ids"])
    assert_close(encoder.embed(texts), tensors["vectors"], rtol=0, atol=1e-5)
    assert_close(encoder(texts[0]).last_hidden_state[0], tensors["first_states"], rtol=0, atol=1e-5)


@needs_weights
@pytest.mark.parametrize("name", ["rxnfp", "rxnmapper"])
def test_chemistry_models_fill_masks_as_hugging_faces_do(name: str) -> None:
    tensors, _ = recorded(name)
    model = segue.load_encoder(REAL / name).model
    places = torch.arange(len(tensors["masked"]))
    assert isinstance(model.head, MaskedHead)
    with torch.no_grad():
        states = model.encoder(tensors["masked"]).last_hidden_state[places, places + 1]
        logits = model.head(states, model.encoder.words.weight)
    assert_close(logits, tensors["logits"], rtol=0, atol=1e-4)
    right = logits.argmax(dim=-1) == tensors["input_ids"][1:-1]
    assert right.float().mean() > 0.9
