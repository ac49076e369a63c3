"""The libraries themselves, beside ours: `make test-interop` has them in a virtual environment of its own."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from pieces import write_pieces
from test_translators import SHAPES, translator_of

from segue.checkpoint import Translator
from segue.config import Translating
from segue.infer.translate import translate
from segue.interop.ctranslate2_export import export_ctranslate2
from segue.interop.importing import import_model
from segue.interop.sentencepiece import piece_tokenizer, read_pieces

pytestmark = pytest.mark.interop
GREEDY = Translating(beam_width=1, longest=24)
CHINESE = [
    "今天天气很好。",
    "他昨天去了北京,参观了故宫。",
    "请问,火车站怎么走?",
    "这本书非常有意思,我已经读了三遍。",
    "联合国大会通过了一项新决议。",
    "她在大学学习计算机科学。",
    "科学家发现了一种新的病毒。",
    "互联网改变了我们的生活方式。",
    "气候变化是全人类面临的挑战。",
    "您要咖啡还是茶?",
    "公司今年的利润增长了百分之二十。",
    "他的中文说得很流利。",
]


def sentences_of(translator: Translator, count: int) -> list[bytes]:
    generator = random.Random(1)
    words = [translator.source.decode([number]) for number in range(1, translator.source.size)]
    return [b" ".join(generator.choices(words, k=generator.randint(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize("int8", [False, True])
def test_ctranslate2_translates_what_we_export_as_we_do(
    changes: dict[str, Any], int8: bool, tmp_path: Path
) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    translator = translator_of(**changes)
    export_ctranslate2(translator, tmp_path / "ct2", int8=int8)
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    sentences = sentences_of(translator, 200)
    batch = [sentence.decode().split() for sentence in sentences]
    limits = {"max_decoding_length": 24, "min_decoding_length": 0}  # theirs is at least one symbol by default
    results = theirs.translate_batch(batch, beam_size=1, suppress_sequences=[["<s>"]], **limits)
    wanted = [" ".join(result.hypotheses[0]) for result in results]
    ours = import_model(tmp_path / "ct2")  # of int8: what is left after rounding
    assert isinstance(ours, Translator)
    assert [texts[0].text for texts in translate(ours, sentences, translating=GREEDY)] == wanted


def test_sentencepiece_cuts_as_our_conversion_does(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = [line.strip() for line in Path(os.__file__).read_text().splitlines() if line.strip()]
    prefix = tmp_path / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(prefix), vocab_size=500, minloglevel=2
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    pieces = read_pieces(prefix.with_suffix(".model"))
    symbols = ["<unk>", *pieces.scores]
    ours = piece_tokenizer(symbols, 0, pieces)
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    other = [line.strip() for line in Path(random.__file__).read_text().splitlines()]
    for line in (*other, "ﬁne  ½ ＡＢＣ\ttab", "naïve café", "  ", "今天 x"):
        wanted = [ids.get(piece, 0) for piece in theirs.encode(line, out_type=str)]
        assert list(ours.encode(line.encode())) == wanted, line


def test_marian_generates_what_we_generate(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    vocab = 60
    config = transformers.MarianConfig(
        vocab_size=vocab, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
        pad_token_id=vocab - 1, eos_token_id=0, decoder_start_token_id=vocab - 1, init_std=0.3,
        activation_function="swish", scale_embedding=True,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    theirs.save_pretrained(tmp_path / "m")
    words = {f"\u2581w{number}": -1.0 for number in range(2, vocab - 1)}
    ids = {"</s>": 0, "<unk>": 1, **{word: n for n, word in enumerate(words, start=2)}, "<pad>": vocab - 1}
    (tmp_path / "m" / "vocab.json").write_text(json.dumps(ids))
    for side in ("source", "target"):
        write_pieces(tmp_path / "m" / f"{side}.spm", words)
    ours = import_model(tmp_path / "m")
    assert isinstance(ours, Translator)
    names = {number: word for word, number in ids.items()}
    for sentence in sentences_of(ours, 20):
        tokens = [ids[f"\u2581{word}"] for word in sentence.decode().split()]
        found = theirs.generate(
            torch.tensor([[*tokens, 0]]), num_beams=1, do_sample=False, max_new_tokens=24,
            forced_eos_token_id=None, bad_words_ids=[[vocab - 1]],
        )  # fmt: skip
        text = "".join(names[int(number)] for number in found[0, 1:] if number not in (0, vocab - 1))
        wanted = text.replace("\u2581", " ").strip()
        assert translate(ours, [sentence], translating=GREEDY)[0][0].text == wanted


def test_opus_mt_in_the_real() -> None:
    """With SEGUE_OPUS_MT naming a package of Argos: a CTranslate2 folder `model` and a sentencepiece.model."""
    ctranslate2, sentencepiece = pytest.importorskip("ctranslate2"), pytest.importorskip("sentencepiece")
    if "SEGUE_OPUS_MT" not in os.environ:
        pytest.skip("SEGUE_OPUS_MT names no package")
    folder = Path(os.environ["SEGUE_OPUS_MT"])
    cut = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    theirs = ctranslate2.Translator(str(folder / "model"), compute_type="float32")
    results = theirs.translate_batch([cut.encode(line, out_type=str) for line in CHINESE], beam_size=1)
    wanted = ["".join(result.hypotheses[0]).replace("\u2581", " ").strip() for result in results]
    ours = import_model(folder)
    assert isinstance(ours, Translator)
    found = translate(ours, [line.encode() for line in CHINESE], translating=Translating(beam_width=1))
    assert [texts[0].text for texts in found] == wanted
