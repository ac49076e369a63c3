"""ONNX graphs compute what the models compute: by onnx's reference, and by onnxruntime in `make test-interop`."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from encoders import small_encoder
from segue.checkpoint import Bundle, Translator
from segue.cli import app
from segue.config import (
    ConvolutionalConfig,
    HeadConfig,
    KernelConfig,
    LanguageConfig,
    Reach,
    Reading,
    RecurrentConfig,
    RecurrentSeq2SeqConfig,
    Seq2SeqConfig,
    Translating,
    UniversalConfig,
    UniversalSeq2SeqConfig,
    XLConfig,
)
from segue.errors import SourceError
from segue.infer.embed import embed_texts
from segue.infer.translate import translate
from segue.interop import onnx_graph
from segue.interop.onnx_export import export_onnx
from segue.nn.models import build_language_model, build_translator
from segue.text.special_tokens import special_tokens
from segue.text.tokenizer import ByteTokenizer
from support import ENCODINGS, TABLES, VOCAB, some_tokens

onnx = pytest.importorskip("onnx", reason="pip install 'segue-lm[onnx]'")

Arrays = dict[str, Any]
Graph = Callable[[Arrays], Arrays]
SMALL = {"vocab": VOCAB, "width": 8, "heads": 2}
LAYERS = {**SMALL, "layers": 2}
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(params=["reference", pytest.param("onnxruntime", marks=pytest.mark.interop)])
def opened(request: pytest.FixtureRequest) -> Callable[[Path], Graph]:
    """Opens a file: what to call with inputs by their names, for outputs by theirs."""

    def reference(path: Path) -> Graph:
        graph = onnx.load(path)
        onnx.checker.check_model(graph, full_check=True)
        session = pytest.importorskip("onnx.reference").ReferenceEvaluator(graph)
        names = [one.name for one in graph.graph.output]
        return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))

    def runtime(path: Path) -> Graph:
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))

    return reference if request.param == "reference" else runtime


def shaken(model: nn.Module) -> Any:
    """Weights large enough that everything shows, biases too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model.eval()


def language_bundle(config: LanguageConfig, reach: Reach) -> Bundle:
    return Bundle(
        shaken(build_language_model(config)),
        Reading(segment=4, reach=reach),
        ByteTokenizer(bytes(range(97, 110))),
    )


def start(path: Path, lanes: int, memory: int) -> Arrays:
    """The state before anything was read. What memory holds makes no difference."""
    state: Arrays = {}
    for one in onnx.load(path).graph.input[1:]:
        shape = [
            axis.dim_value or {"lanes": lanes, "memory": memory}[axis.dim_param]
            for axis in one.type.tensor_type.shape.dim
        ]
        state[one.name] = np.zeros(lanes, np.int64) if one.name == "seen" else np.full(shape, 7, np.float32)
    return state


def read(graph: Graph, state: Arrays, segments: Sequence[Any]) -> tuple[Any, Arrays]:
    """All log-probabilities of segments that are read one after another, and the state behind them."""
    logprobs = []
    for segment in segments:
        outputs = graph({"tokens": segment.numpy(), **state})
        logprobs.append(outputs.pop("logprobs"))
        state = {name: outputs[f"new.{name}"] for name in state}
    return np.concatenate(logprobs, axis=1), state


def as_read_here(bundle: Bundle, segments: Sequence[torch.Tensor], lanes: int) -> Any:
    engine, logprobs = bundle.model.frozen(), []
    memory = engine.start(lanes=lanes, reach=bundle.reading.reach)
    for segment in segments:
        hidden, memory = engine(segment, memory)
        logprobs.append(engine.logprobs(hidden).numpy())
    return np.concatenate(logprobs, axis=1)


XL = [(XLConfig(**LAYERS, encoding=name, **TABLES.get(name, {})), Reach(memory=6)) for name in ENCODINGS]
MODELS = [
    *XL,
    (XLConfig(**LAYERS, norm="pre", biases="per-layer", tied=False), Reach(memory=5, clamp=3, span=4)),
    (XLConfig(**LAYERS, norm="pre", encoding="rotary", head_width=3), Reach(memory=4, initial="zeros")),
    (XLConfig(**LAYERS, encoding="alibi"), Reach(memory=6, clamp=3)),
    (XLConfig(**LAYERS, encoding="shaw", max_distance=8), Reach(memory=6, clamp=3)),
    (XLConfig(**LAYERS, encoding="learned", max_positions=6), Reach(memory=0, positions="restart")),
    (XLConfig(**LAYERS, layer_embeddings=True), Reach(memory=6)),
    (XLConfig(**LAYERS, pattern="strided", stride=3), Reach(memory=6)),
    (XLConfig(**LAYERS, pattern="fixed", stride=4, summary=2, combine="heads"), Reach(memory=6)),
    (XLConfig(**LAYERS, cutoffs=(4, 9), divisor=2, tied_projections=False), Reach(memory=3)),
    (UniversalConfig(**SMALL, steps=3, halting="act", halt_bias=0.5), Reach(memory=5)),
    (RecurrentConfig(vocab=VOCAB, width=8, cell="lstm"), Reach(memory=1)),
    (RecurrentConfig(vocab=VOCAB, width=8, cell="gru"), Reach(memory=1)),
    (KernelConfig(**LAYERS), Reach(memory=1)),
    (KernelConfig(**LAYERS, features="performer", random_features=12, encoding="none"), Reach(memory=1)),
    (ConvolutionalConfig(vocab=VOCAB, width=8, layers=((6, 3, 1), (8, 2, 2))), Reach(memory=1)),
    (
        ConvolutionalConfig(vocab=VOCAB, width=8, layers=((8, 2, 2),), gate="tcn", input_embedding=5),
        Reach(memory=1),
    ),
]


@pytest.mark.parametrize(
    ("config", "reach"),
    MODELS,
    ids=[f"{c.kind}-{getattr(c, 'encoding', '')}-{number}" for number, (c, _) in enumerate(MODELS)],
)
def test_a_language_model_reads_on_as_it_does_here(
    config: LanguageConfig, reach: Reach, tmp_path: Path, opened: Callable[[Path], Graph]
) -> None:
    bundle, path = language_bundle(config, reach), tmp_path / "out" / "model.onnx"
    assert export_onnx(bundle, tmp_path / "out") == []
    segments, state = some_tokens(2, 12).split([1, 4, 1, 6], dim=1), start(path, 2, reach.memory)
    sizes = {name: value.shape for name, value in state.items()}
    logprobs, state = read(opened(path), state, segments)
    np.testing.assert_allclose(logprobs, as_read_here(bundle, segments, 2), **CLOSE)
    assert {name: value.shape for name, value in state.items()} == sizes
    assert state["seen"].tolist() == [12, 12]


def test_where_the_cuts_fall_makes_no_difference(tmp_path: Path, opened: Callable[[Path], Graph]) -> None:
    bundle = language_bundle(XLConfig(**LAYERS), Reach(memory=8, span=9))
    export_onnx(bundle, tmp_path / "out")
    path, tokens = tmp_path / "out" / "model.onnx", some_tokens(1, 30)
    graph = opened(path)
    whole, _ = read(graph, start(path, 1, 8), [tokens])
    for sizes in ([1, 29], [13, 2, 15], [10, 10, 10], [29, 1]):
        pieces, _ = read(graph, start(path, 1, 8), tokens.split(sizes, dim=1))
        np.testing.assert_allclose(pieces, whole, **CLOSE)


@pytest.mark.parametrize("encoding", ["xl", "sinusoidal"])
def test_lanes_are_alone_begin_anew_and_may_be_padded(
    encoding: str, tmp_path: Path, opened: Callable[[Path], Graph]
) -> None:
    bundle = language_bundle(XLConfig(**LAYERS, encoding=encoding), Reach(memory=6))
    export_onnx(bundle, tmp_path / "out")
    path, tokens = tmp_path / "out" / "model.onnx", some_tokens(3, 8)
    graph = opened(path)
    _, state = read(graph, start(path, 3, 6), [tokens])
    state["seen"][1] = 0  # begins anew
    state["seen"][2] = -3  # begins anew, behind three tokens of padding
    together, _ = read(graph, state, [tokens[:, :5], tokens[:, 5:]])
    alone, _ = read(graph, start(path, 1, 6), [tokens[:1], tokens[:1, :5], tokens[:1, 5:]])
    np.testing.assert_allclose(together[:1], alone[:, 8:], **CLOSE)
    anew, _ = read(graph, start(path, 1, 6), [tokens[1:2, :5], tokens[1:2, 5:]])
    np.testing.assert_allclose(together[1:2], anew, **CLOSE)
    unpadded, _ = read(graph, start(path, 1, 6), [tokens[2:, 3:5], tokens[2:, 5:]])
    np.testing.assert_allclose(together[2:, 3:], unpadded, **CLOSE)


SEQ2SEQ = {**SMALL, "vocab": VOCAB + 2, "encoder_layers": 2, "decoder_layers": 2}
TRANSLATORS = [
    Seq2SeqConfig(**SEQ2SEQ),
    Seq2SeqConfig(**SEQ2SEQ, encoding="xl", norm="pre", source_vocab=9, activation="swish", decoder_span=3),
    Seq2SeqConfig(**SEQ2SEQ, sinusoids="concatenated", final_norm=True, output_bias=True, activation="gelu"),
    Seq2SeqConfig(**SEQ2SEQ, window=2, global_tokens=1),
    Seq2SeqConfig(**SEQ2SEQ, encoding="xl", window=4),
    UniversalSeq2SeqConfig(**SMALL | {"vocab": VOCAB + 2}, steps=3, halting="act", halt_bias=0.5),
]


def translator_of(config: Any) -> Translator:
    target = ByteTokenizer(bytes(range(97, 97 + VOCAB)))
    source = ByteTokenizer(bytes(range(97, 97 + config.source_vocab - 2))) if config.source_vocab else target
    return Translator(shaken(build_translator(config)), Translating(beam_width=1), source, target)


@pytest.mark.parametrize("config", TRANSLATORS, ids=range(len(TRANSLATORS)))
def test_a_translator_is_a_pair_of_files(
    config: Any, tmp_path: Path, opened: Callable[[Path], Graph]
) -> None:
    translator, out = translator_of(config), tmp_path / "out"
    export_onnx(translator, out)
    encoder, decoder = opened(out / "encoder.onnx"), opened(out / "decoder.onnx")
    source, lengths = some_tokens(4, 6) % 7, torch.tensor([6, 1, 4, 3])
    target = some_tokens(4, 8, seed=1)
    model = translator.model
    with torch.no_grad():
        hidden, _ = model(target, model.start(source, lengths))
        wanted = model.logprobs(hidden).numpy()
    fixed = encoder({"source": source.numpy(), "lengths": lengths.numpy()}) | {"lengths": lengths.numpy()}
    shape = [
        axis.dim_value for axis in onnx.load(out / "decoder.onnx").graph.input[3].type.tensor_type.shape.dim
    ]
    memory = np.zeros([4, *shape[1:3], 0, *shape[4:]], np.float32)
    state = {"memory": memory, "seen": np.zeros(4, np.int64)}
    logprobs, _ = read(lambda one: decoder({**fixed, **one}), state, target.split([1, 1, 5, 1], dim=1))
    np.testing.assert_allclose(logprobs, wanted, **CLOSE)
    settings = json.loads((out / "onnx.json").read_text())
    assert (settings["start"], settings["end"]) == special_tokens(config.vocab)


HEADS = [
    (None, {}),
    (HeadConfig(task="masked", next_sentence=True), {"embedding": 6}),
    (HeadConfig(task="text", labels=("no", "yes")), {"shared_layers": True, "activation": "gelu-tanh"}),
    (HeadConfig(task="tags", labels=("a", "b")), {"window": 4, "global_tokens": 1, "pooler": False}),
    (HeadConfig(task="span"), {"attention": "linformer", "rank": 3, "pooler": False}),
    (HeadConfig(task="score"), {"attention": "nystrom", "rank": 4}),
]


@pytest.mark.parametrize(("head", "shape"), HEADS, ids=[head.task if head else "none" for head, _ in HEADS])
def test_an_encoder_gives_states_vectors_and_logits(
    head: HeadConfig | None, shape: dict[str, Any], tmp_path: Path, opened: Callable[[Path], Graph]
) -> None:
    encoder = small_encoder(tmp_path, head, **shape)
    export_onnx(encoder, tmp_path / "out")
    texts = ["the animal did not cross the street", "animal", "un tired ."]
    pieces = encoder.tokenizer.pieces(texts, 9)
    longest = max(len(one.ids) for one in pieces)
    ids, types, mask = (np.zeros((3, longest), np.int64) for _ in range(3))
    for number, one in enumerate(pieces):
        ids[number, : len(one.ids)], types[number, : len(one.ids)] = one.ids, one.types
        mask[number, : len(one.ids)] = 1
    outputs = opened(tmp_path / "out" / "model.onnx")(
        {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    )
    with torch.no_grad():
        read_here = encoder.model.encoder(*(torch.from_numpy(one) for one in (ids, mask, types)))
        np.testing.assert_allclose(outputs["last_hidden_state"], read_here.last_hidden_state, **CLOSE)
        if encoder.model.config.sees_all:
            np.testing.assert_allclose(outputs["sentence_embedding"], embed_texts(encoder, texts), **CLOSE)
        if read_here.pooler_output is not None:
            np.testing.assert_allclose(outputs["pooler_output"], read_here.pooler_output, **CLOSE)
        if head is not None:
            predicted = encoder.model.predict(read_here.last_hidden_state, read_here.pooler_output)
            np.testing.assert_allclose(outputs["logits"], predicted.logits, **CLOSE)


def test_int8_weighs_a_quarter_and_changes_little(tmp_path: Path, opened: Callable[[Path], Graph]) -> None:
    config = XLConfig(vocab=1000, width=128, layers=2, heads=2)
    bundle = Bundle(
        build_language_model(config).eval(), Reading(segment=4, reach=Reach(memory=6)), ByteTokenizer()
    )
    with torch.no_grad():
        bundle.model.vocabulary.tables[0].mul_(5)
    for name, int8 in (("float32", False), ("int8", True)):
        export_onnx(bundle, tmp_path / name, int8=int8)
    files = {name: tmp_path / name / "model.onnx" for name in ("float32", "int8")}
    assert files["int8"].stat().st_size < 0.45 * files["float32"].stat().st_size
    weights = sum(weight.numel() for weight in bundle.model.parameters())
    assert files["float32"].stat().st_size < 4 * weights + 100_000  # a tied table is written once
    tokens = some_tokens(2, 9)
    read_as = {name: read(opened(path), start(path, 2, 6), [tokens])[0] for name, path in files.items()}
    exact, rounded = read_as["float32"], read_as["int8"]
    assert 0 < np.abs(exact - rounded).max() < 0.5
    assert (exact.argmax(-1) == rounded.argmax(-1)).mean() > 0.8


REFUSED = [
    (ConvolutionalConfig(vocab=VOCAB, width=8, layers=((8, 2, 1),), gate="qrnn"), Reach(memory=1), "QRNN"),
    (XLConfig(**LAYERS), Reach(memory=4, pinned=2, clamp=3), "pinned 2 rows have no ONNX form"),
    (RecurrentConfig(vocab=VOCAB, width=8), Reach(memory=0), "memory=1 or more"),
]


@pytest.mark.parametrize(("config", "reach", "told"), REFUSED, ids=[told for *_, told in REFUSED])
def test_what_has_no_onnx_form_is_refused_by_name(
    config: LanguageConfig, reach: Reach, told: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=told):
        export_onnx(language_bundle(config, reach), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_recurrent_translator_is_refused_by_name(tmp_path: Path) -> None:
    translator = translator_of(RecurrentSeq2SeqConfig(vocab=VOCAB + 2, width=8))
    with pytest.raises(SourceError, match="recurrent-seq2seq model has no ONNX form"):
        export_onnx(translator, tmp_path / "out")


def test_weights_beyond_two_gibibytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "LARGEST", 100)
    with pytest.raises(SourceError, match="do not fit into an ONNX file"):
        export_onnx(language_bundle(XLConfig(**LAYERS), Reach(memory=4)), tmp_path / "out")


def test_without_the_library_its_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SourceError, match=r"needs the onnx package: pip install 'segue-lm\[onnx\]'"):
        export_onnx(language_bundle(XLConfig(**LAYERS), Reach(memory=4)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_exports_whatever_a_bundle_is_for(tmp_path: Path) -> None:
    bundles = {
        "language": language_bundle(XLConfig(**LAYERS), Reach(memory=4)),
        "translator": translator_of(TRANSLATORS[0]),
        "encoder": small_encoder(tmp_path),
    }
    for name, bundle in bundles.items():
        bundle.save(tmp_path / name)
        out = tmp_path / f"{name}-onnx"
        words = ["export", tmp_path / name, "-o", out, "--to", "onnx", "--quantize", "int8"]
        done = CliRunner().invoke(app, [*map(str, words)])
        assert "written in the onnx layout" in done.output
        settings = json.loads((out / "onnx.json").read_text())
        assert settings["weights"] == "int8"
        assert all((out / file).is_file() for file in (*settings["files"], "tokenizer.json"))


EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(script: str, *words: object, lines: str = "") -> str:
    pytest.importorskip("onnxruntime")
    command = [sys.executable, str(EXAMPLES / script), *map(str, words)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.interop
def test_the_example_generates_text(tmp_path: Path) -> None:
    export_onnx(language_bundle(XLConfig(**LAYERS), Reach(memory=4)), tmp_path / "out")
    text = ran("onnx_generate.py", tmp_path / "out", "abcdefabcdef", 40).strip()
    assert text.startswith("abcdefabcdef")
    assert len(text) == 40


@pytest.mark.interop
def test_the_example_translates_as_we_do(tmp_path: Path) -> None:
    translator = translator_of(Seq2SeqConfig(**SEQ2SEQ, source_vocab=9))
    export_onnx(translator, tmp_path / "out")
    lines = ["abc", "gfedcba", "a", "bbbbbb"]
    how = Translating(beam_width=1)
    ours = [
        best[0].text for best in translate(translator, [line.encode() for line in lines], translating=how)
    ]
    assert ran("onnx_translate.py", tmp_path / "out", lines="\n".join(lines)).splitlines() == ours
