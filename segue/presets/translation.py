"""Encoder-decoders: the published ones, and small ones for a CPU."""

from typing import Any

from segue.config import (
    RecurrentSeq2SeqConfig,
    Seq2SeqConfig,
    Translating,
    TranslationConfig,
    UniversalSeq2SeqConfig,
)
from segue.presets.parts import Preset
from segue.recipe import PairTrainConfig, TranslationRecipe


def _transformer(model: TranslationConfig, *, steps: int) -> TranslationRecipe:
    """Learning rate d^-0.5 min(step^-0.5, step warmup^-1.5): its peak is (d warmup)^-0.5."""
    return TranslationRecipe(
        model=model,
        train=PairTrainConfig(
            steps=steps,
            tokens=25_000,
            learning_rate=(model.width * 4000) ** -0.5,
            schedule="inverse-sqrt",
            warmup=4000,
            beta2=0.98,
            epsilon=1e-9,
            clip=0,
            keep=5,
        ),
        translating=Translating(),
    )


def _multi30k(model: TranslationConfig, **changes: Any) -> TranslationRecipe:
    """About an hour of training on one core, or half an hour on two."""
    settings: dict[str, Any] = {
        "steps": 2500,
        "tokens": 4096,
        "warmup": 125,
        "floor": 0.02,
        "beta2": 0.98,
        "clip": 1.0,
        "validate_every": 250,
        "save_every": 250,
    }
    return TranslationRecipe(
        model=model, train=PairTrainConfig(**{**settings, **changes}), translating=Translating()
    )


SMALL: dict[str, Any] = {
    "vocab": 10_002,
    "width": 128,
    "heads": 4,
    "feedforward": 256,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "dropout": 0.2,
    "norm": "pre",
}
"""The literature's small Transformer for Multi30k."""

TRANSLATION: dict[str, Preset] = {
    "transformer-base": Preset(
        recipe=_transformer(Seq2SeqConfig(vocab=37_000, width=512, heads=8, dropout=0.1), steps=100_000),
        data="WMT 2014, 37,000 BPE symbols for both languages",
        published="27.3 BLEU (English to German), 38.1 (to French)",
    ),
    "transformer-big": Preset(
        recipe=_transformer(Seq2SeqConfig(vocab=37_000, width=1024, heads=16, dropout=0.3), steps=300_000),
        data="WMT 2014, 37,000 BPE symbols for both languages",
        published="28.4 BLEU (English to German), 41.8 (to French)",
        note="Dropout 0.1 for French.",
    ),
    "universal-base": Preset(
        recipe=_transformer(
            UniversalSeq2SeqConfig(vocab=37_000, width=1024, heads=16, steps=6, dropout=0.3), steps=100_000
        ),
        data="WMT 2014, 37,000 BPE symbols for both languages",
        published="28.9 BLEU (English to German)",
        note="The paper's 28.9 stands beside 28.0 for transformer-base, by the same script. Without halting.",
    ),
    "dates-cpu": Preset(
        recipe=TranslationRecipe(
            model=Seq2SeqConfig(
                vocab=259, width=96, heads=4, feedforward=384, encoder_layers=2, decoder_layers=2, dropout=0.0
            ),
            train=PairTrainConfig(
                steps=800,
                tokens=4096,
                optimizer="muon",
                learning_rate=6e-3,
                warmup=40,
                floor=0.02,
                beta2=0.98,
                clip=1.0,
                smoothing=0.0,
                validate_every=100,
                save_every=0,
            ),
            translating=Translating(beam_width=1, longest=64),
        ),
        data="dates (`segue prepare-pairs --task dates`), bytes",
        published="",
        note="For 2 CPU cores and about two minutes.",
    ),
    "multi30k-cpu": Preset(
        recipe=_multi30k(Seq2SeqConfig(**SMALL, encoding="xl"), optimizer="muon", learning_rate=4e-3),
        data="Multi30k, BPE of both languages",
        published="",
        note="An hour on one CPU core: the literature's small Transformer, with relative positions in the encoder.",
    ),
    "multi30k-window": Preset(
        recipe=_multi30k(
            Seq2SeqConfig(**SMALL, encoding="xl", window=8, global_tokens=1, decoder_span=8),
            optimizer="muon",
            learning_rate=4e-3,
        ),
        data="Multi30k, BPE of both languages",
        published="",
        note="multi30k-cpu with windows: a word sees four to each side and the first one, a target's the last eight.",
    ),
    "multi30k-linformer": Preset(
        recipe=_multi30k(
            Seq2SeqConfig(**SMALL, attention="linformer", rank=16, max_source=257),
            optimizer="muon",
            learning_rate=4e-3,
        ),
        data="Multi30k, BPE of both languages",
        published="",
        note="multi30k-cpu with Linformer in its encoder and absolute positions: 16 mixtures of all words, one E.",
    ),
    "multi30k-rnn": Preset(
        recipe=_multi30k(
            RecurrentSeq2SeqConfig(vocab=10_002, width=256, layers=1, attention=False, dropout=0.2),
            learning_rate=2e-3,
        ),
        data="Multi30k, BPE of both languages",
        published="",
        note="To compare with multi30k-cpu: a GRU encoder and decoder, with one state vector between them.",
    ),
    "multi30k-rnn-attention": Preset(
        recipe=_multi30k(
            RecurrentSeq2SeqConfig(vocab=10_002, width=256, layers=1, attention=True, dropout=0.2),
            learning_rate=2e-3,
        ),
        data="Multi30k, BPE of both languages",
        published="",
        note="The same, with attention to all encoder states.",
    ),
}
