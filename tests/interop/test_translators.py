"""Translators of other code: they compute here what they compute there, and what does not fit is named."""

import json
import math
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from pieces import BYTE, write_pieces
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from segue.checkpoint import Translator, load_translator
from segue.config import Seq2SeqConfig, Translating
from segue.errors import SegueError
from segue.infer.translate import translate
from segue.interop.ctranslate2_export import export_ctranslate2
from segue.interop.ctranslate2_format import read_variables, write_variables
from segue.interop.importing import import_model
from segue.interop.sentencepiece import piece_tokenizer, read_pieces
from segue.nn.positions import interleaved_sinusoids
from segue.nn.seq2seq import Seq2Seq
from segue.text.tokenizer import ByteTokenizer, word_tokenizer

RECORDED = Path(__file__).parent / "recorded"
MARIAN = sorted(path.name for path in RECORDED.glob("marian-*"))
VOCAB = 17


def marian(tmp_path: Path, name: str = "marian-swish", **changes: Any) -> Path:
    """A recorded model as the folder that a user would have."""
    folder = tmp_path / name
    shutil.copytree(RECORDED / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    words = {f"\u2581w{number}": -float(number) for number in range(2, VOCAB - 1)}
    write_pieces(folder / "source.spm", {**words, "\u2581extra": -3.0})
    write_pieces(folder / "target.spm", words)
    return folder


def our_ids(theirs: Tensor, added: int) -> Tensor:
    """Text first, then the pieces that the vocabulary lacks, the start (their last) and the end (their first)."""
    ours = theirs - 1
    ours[theirs == VOCAB - 1] = VOCAB - 2 + added
    ours[theirs == 0] = VOCAB - 1 + added
    return ours


@pytest.mark.parametrize("name", MARIAN)
def test_marians_log_probabilities(name: str, tmp_path: Path) -> None:
    import_model(marian(tmp_path, name)).save(tmp_path / "bundle")
    translator = load_translator(tmp_path / "bundle")
    recorded = load_file(RECORDED / name / "outputs.safetensors")
    shared = name != "marian-two-vocabularies"
    source, target = our_ids(recorded["source"], added=1), our_ids(recorded["target"], added=int(shared))
    memory = translator.model.start(source, torch.tensor([5, 3]))
    hidden, _ = translator.model(target, memory)
    logprobs = translator.model.logprobs(hidden)
    order = our_ids(torch.arange(VOCAB), added=int(shared))
    assert_close(logprobs[..., order], recorded["logprobs"], rtol=0, atol=1e-5)
    if shared:
        assert logprobs[..., VOCAB - 2].max() < -1e8  # a piece that is never written
    assert translator.source.encode(b"w2 w3  extra nothing") == [
        1,
        2,
        VOCAB - 2,
        *translator.source.encode(b"?"),
    ]
    assert translator.target.decode([1, 2]) == b"w2 w3"
    assert translate(translator, [b"w2 w5"])[0][0].text


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"encoder_layers": 3}, "lacks the tensor model.encoder.layers.2"),
        ({"encoder_layers": 1}, "also holds model.encoder.layers.1"),
        ({"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}, "has shape"),
        ({"encoder_attention_heads": 4}, "attention_heads is 4 in the encoder and 2 in the decoder"),
        ({"activation_function": "tanh"}, "activation_function should be"),
        ({"normalize_before": True}, "normalize_before should be False"),
        ({"decoder_start_token_id": 99}, "should be different ids of 17 symbols"),
        ({"encoder_layers": 10**12}, "lacks the tensor|config"),
    ],
)
def test_a_marian_config_that_does_not_fit(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    folder = marian(tmp_path, **changes)
    with pytest.raises(SegueError, match=match) as caught:
        import_model(folder)
    assert "\n" not in str(caught.value)


def test_a_marian_folder_that_lacks_a_file(tmp_path: Path) -> None:
    folder = marian(tmp_path)
    (folder / "vocab.json").write_text('{"a": 0, "b": 2}')
    with pytest.raises(SegueError, match="should give each symbol an id"):
        import_model(folder)
    (folder / "source.spm").write_bytes(b"rubbish")
    with pytest.raises(SegueError, match="is no model of sentencepiece"):
        import_model(folder)
    (folder / "source.spm").unlink()
    with pytest.raises(SegueError, match="source.spm could not be read"):
        import_model(folder)


def test_pieces_are_cut_as_the_best_sum_of_scores(tmp_path: Path) -> None:
    scores = {"\u2581": -2.0, "\u2581ab": -3.0, "a": -2.0, "b": -2.0, "c": -2.5, "bc": -3.5, "\u2581a": -2.5}
    path = write_pieces(tmp_path / "a.spm", scores)
    symbols = ["<unk>", *scores, "never", "é", ">>fr<<"]
    tokenizer = piece_tokenizer(symbols, 0, read_pieces(path))

    def cut(text: str) -> list[str]:
        return [symbols[number] for number in tokenizer.encode(text.encode())]

    assert cut("abc") == ["\u2581ab", "c"]  # -5.5, and \u2581a bc -6
    assert cut("  a   b ") == ["\u2581a", "\u2581", "b"]
    assert cut("never") == ["\u2581", "<unk>"]  # symbols that the model lacks are never made
    assert cut("aéb") == ["\u2581a", "é", "b"]  # unless they are one character
    assert cut(">>fr<< ab") == [">>fr<<", "\u2581ab"]
    assert tokenizer.decode([symbols.index("\u2581ab"), symbols.index("never")]) == b"abnever"
    for changes in ({"kind": 2}, {"more": BYTE}):
        with pytest.raises(SegueError, match="not a plain Unigram model"):
            read_pieces(write_pieces(tmp_path / "b.spm", scores, **changes))


class Tutorial(nn.Module):
    """A translator as torch's tutorials write it."""

    def __init__(self, *, pre: bool, activation: str) -> None:
        super().__init__()
        shape = {
            "dim_feedforward": 12,
            "dropout": 0.0,
            "batch_first": True,
            "norm_first": pre,
            "activation": activation,
        }
        self.transformer = nn.Transformer(8, 2, 2, 3, **shape)
        self.generator = nn.Linear(8, 9)
        self.src_tok_emb, self.tgt_tok_emb = nn.Module(), nn.Module()
        self.src_tok_emb.embedding, self.tgt_tok_emb.embedding = nn.Embedding(9, 8), nn.Embedding(9, 8)
        self.positional_encoding = nn.Module()
        table = interleaved_sinusoids(torch.arange(30), 8, torch.float32)
        self.positional_encoding.register_buffer("pe", table[None])

    def logprobs(self, source: Tensor, target: Tensor) -> Tensor:
        placed = [
            table.embedding(tokens) * math.sqrt(8) + self.positional_encoding.pe[:, : tokens.size(1)]
            for table, tokens in ((self.src_tok_emb, source), (self.tgt_tok_emb, target))
        ]
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.generator(self.transformer(*placed, tgt_mask=mask)).log_softmax(-1)


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_torchs_own_transformer(pre: bool, activation: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    theirs = Tutorial(pre=pre, activation=activation).eval()
    save_file(dict(theirs.state_dict()), tmp_path / "model.safetensors")
    symbols = ["<pad>", "<sos>", "<eos>", "<unk>", "a", "b", "c", "d", "e"]
    (tmp_path / "vocab.json").write_text(json.dumps({text: number for number, text in enumerate(symbols)}))
    config = {"model_type": "torch-transformer", "nhead": 2, "norm_first": pre, "activation": activation}
    (tmp_path / "config.json").write_text(json.dumps({**config, "symbols": "characters"}))
    translator = import_model(tmp_path)
    assert isinstance(translator, Translator)
    assert translator.source.encode(b"abz") == [2, 3, 1]
    ours = {0: 0, 1: 7, 2: 8, 3: 1, **{number: number - 2 for number in range(4, 9)}}
    source, target = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 8, 7]])
    hidden, _ = translator.model(
        target.clone().apply_(ours.get), translator.model.start(source.clone().apply_(ours.get))
    )
    logprobs = translator.model.logprobs(hidden)[..., [ours[number] for number in range(9)]]
    assert_close(logprobs, theirs.logprobs(source, target), rtol=0, atol=1e-5)
    for wrong, match in (
        ({"end": "</s>"}, "has no symbol '</s>'"),
        ({"transformer": "model"}, "no layers of an nn.Transformer under 'model.'"),
        ({"output": "head"}, "lacks the tensor head.weight"),
        ({"heads": 2}, "has no 'heads'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **wrong}))
        with pytest.raises(SegueError, match=match):
            import_model(tmp_path)


def translator_of(**changes: Any) -> Translator:
    torch.manual_seed(5)
    tokenizer = word_tokenizer(["<unk>", *(f"w{number}" for number in range(9))])
    values = {
        "vocab": 12,
        "width": 8,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "feedforward": 12,
    }
    model = Seq2Seq(Seq2SeqConfig(**{**values, **changes})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    source = word_tokenizer(["<unk>", "a", "b"]) if changes.get("source_vocab") else tokenizer
    return Translator(model, Translating(), source, tokenizer)


SHAPES: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "activation": "gelu"},
    {"final_norm": True, "sinusoids": "concatenated", "activation": "swish", "output_bias": True},
    {"source_vocab": 5, "tied": False, "output_bias": True},
]


@pytest.mark.parametrize("changes", SHAPES)
def test_ctranslate2_gives_back_the_same_model(changes: dict[str, Any], tmp_path: Path) -> None:
    translator = translator_of(**changes)
    assert export_ctranslate2(translator, tmp_path / "ct2") == []
    again = import_model(tmp_path / "ct2")
    assert again.model.config == translator.model.config
    assert_close(dict(again.model.state_dict()), dict(translator.model.state_dict()), rtol=0, atol=0)
    assert isinstance(again, Translator)
    assert again.target.json() == translator.target.json()
    sentences = [b"a b a", b"b"] if changes.get("source_vocab") else [b"w1 w2 w3", b"w8"]
    assert translate(again, sentences) == translate(translator, sentences)


def test_int8_is_within_half_a_step(tmp_path: Path) -> None:
    translator = translator_of()
    export_ctranslate2(translator, tmp_path / "ct2", int8=True)
    again = import_model(tmp_path / "ct2")
    for name, weight in translator.model.state_dict().items():
        near = again.model.state_dict()[name]
        step = weight.abs().amax(dim=-1, keepdim=True) / 127 if weight.dim() == 2 else torch.zeros(1)
        assert bool(((near - weight).abs() <= step / 2 + 1e-6).all()), name
    names = {name: tensor.dtype for name, tensor in read_variables(tmp_path / "ct2" / "model.bin").items()}
    assert names["decoder/embeddings/weight"] == names["encoder/embeddings_0/weight"] == torch.int8


def test_translators_of_bytes_are_exported_too(tmp_path: Path) -> None:
    base = translator_of(vocab=258)
    export_ctranslate2(Translator(base.model, Translating(), *[ByteTokenizer()] * 2), tmp_path / "ct2")
    listed = json.loads((tmp_path / "ct2" / "shared_vocabulary.json").read_text())
    assert (len(listed), listed[65], listed[-2:]) == (258, "<0x41>", ["<s>", "</s>"])
    assert import_model(tmp_path / "ct2").model.config == base.model.config


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"encoding": "xl"}, "no encoding 'xl'; only 'sinusoidal'"),
        ({"head_width": 3}, "wider or narrower"),
        ({"embedding": 4}, "no embedding 4"),
    ],
)
def test_what_ctranslate2_cannot_hold_is_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(SegueError, match=match):
        export_ctranslate2(translator_of(**changes), tmp_path / "ct2")
    assert list(tmp_path.iterdir()) == []


def test_damaged_models_of_ctranslate2(tmp_path: Path) -> None:
    folder = tmp_path / "ct2"
    export_ctranslate2(translator_of(), folder)
    path = folder / "model.bin"
    whole = path.read_bytes()
    for damaged, match in (
        (whole[:-1], "its end is missing"),
        (whole[: len(whole) // 2], "its end is missing"),
        (whole[:20], "its end is missing"),
        (b"", "its end is missing"),
        (b"\x03" + whole[1:], "has format 3; known are 4 to 6"),
        (whole.replace(b"TransformerSpec", b"WhisperSpecXXXX"), "only TransformerSpec"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(SegueError, match=match) as caught:
            import_model(folder)
        assert "\n" not in str(caught.value)
    for place in range(0, len(whole), 211):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x81]) + whole[place + 1 :])
        with suppress(SegueError):  # a flip inside of a number cannot be noticed: the format has no checksum
            import_model(folder)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"encoder/layernorm_embedding/gamma": torch.ones(8)},
            "also holds encoder/layernorm_embedding/gamma",
        ),
        ({"decoder/alibi": torch.tensor(1, dtype=torch.int8)}, "also holds decoder/alibi"),
        ({"decoder/activation": torch.tensor(5, dtype=torch.int8)}, "activation 5 is not supported"),
        ({"decoder/pre_norm": torch.tensor(1, dtype=torch.int8)}, "differ; that is not supported"),
        ({"decoder/position_encodings/encodings": torch.randn(99, 8)}, "its positions are no sinusoids"),
        ({"decoder/embeddings/weight": torch.randn(13, 8)}, "the vocabulary 12 symbols"),
        ({"decoder/layer_0/ffn/linear_0/weight": torch.randn(12, 7)}, "has shape"),
        ({"decoder/layer_0/self_attention/linear_0/bias": torch.randn(7)}, "should be 3 equal ones"),
    ],
)
def test_what_is_no_plain_transformer(change: dict[str, Tensor], match: str, tmp_path: Path) -> None:
    folder = tmp_path / "ct2"
    export_ctranslate2(translator_of(), folder)
    aliases = {"encoder/position_encodings/encodings": "decoder/position_encodings/encodings"}
    aliases |= dict.fromkeys(
        ("decoder/projection/weight", "encoder/embeddings_0/weight"), "decoder/embeddings/weight"
    )
    variables = {name: t for name, t in read_variables(folder / "model.bin").items() if name not in aliases}
    write_variables(folder / "model.bin", {**variables, **change}, aliases)
    with pytest.raises(SegueError, match=match) as caught:
        import_model(folder)
    assert "\n" not in str(caught.value)
