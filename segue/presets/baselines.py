"""Published models that Transformer-XL was measured against: Al-Rfou's Transformer, and convolutional ones."""

from segue.config import ConvolutionalConfig, Reach, Reading, XLConfig
from segue.presets.parts import Preset
from segue.recipe import Recipe, TrainConfig

ISOLATED = Reach(memory=0, positions="restart")
CARRIED = Reach(memory=1)

_WIKITEXT_103 = 267_735
_GCNN_CLUSTERS = {"cutoffs": (10_000, 20_000, 200_000), "divisor": 4, "head_projection": False}
_GCNN_14 = (
    *[(850, 6, 1)] * 3,
    (850, 1, 1),
    *[(850, 5, 1)] * 4,
    (850, 1, 1),
    *[(850, 4, 1)] * 3,
    (1024, 4, 1),
    (2048, 4, 1),
)
_EPOCH = 103_227_021
"""Words of WikiText-103's training split."""


def _alrfou(layers: int) -> Recipe:
    return Recipe(
        model=XLConfig(
            vocab=256,
            width=512,
            layers=layers,
            heads=2,
            feedforward=2048,
            encoding="per-layer",
            max_positions=512,
            tied=False,
            dropout=0.55,
            attention_dropout=0.55,
        ),
        train=TrainConfig(
            lanes=16,
            segment=512,
            memory=0,
            positions="restart",
            documents=False,
            steps=4_000_000,
            intermediate=2_000_000,
            ahead=2,
            optimizer="sgd",
            beta1=0.99,
            learning_rate=0.003,
            schedule="constant",
            clip=0,
        ),
        reading=Reading(segment=512, reach=ISOLATED),
    )


def _alrfou_preset(layers: int, data: str, bits: float, sizes: str) -> Preset:
    return Preset(
        recipe=_alrfou(layers),
        data=data,
        published=f"{bits} bits per character",
        note=f"Published size: {sizes} (in training, with the heads of the auxiliary losses; without them). "
        "Published scores slide by one: segue eval --sliding. Optimizer, learning rate and dropout are as others "
        "report them; here dropout is on embeddings and residuals as well.",
    )


def _gcnn(layers: tuple[tuple[int, int, int], ...], perplexity: float, note: str) -> Preset:
    return Preset(
        recipe=Recipe(
            model=ConvolutionalConfig(
                vocab=_WIKITEXT_103,
                width=layers[-1][0],
                layers=layers,
                input_embedding=280,
                dropout=0.2,
                **_GCNN_CLUSTERS,
            ),
            train=TrainConfig(
                lanes=8,
                segment=1024,
                memory=1,
                steps=35 * _EPOCH // (8 * 1024),
                optimizer="nesterov",
                beta1=0.99,
                learning_rate=1.0,
                clip=0.1,
            ),
            reading=Reading(segment=1024, reach=CARRIED),
        ),
        data="WikiText-103, words",
        published=f"perplexity {perplexity}",
        note=f"{note} No number of parameters is published. Lanes, steps, schedule and dropout are ours.",
    )


BASELINES: dict[str, Preset] = {
    "enwik8-alrfou-12l": _alrfou_preset(12, "enwik8, bytes", 1.11, "44M and 41M"),
    "enwik8-alrfou-64l": _alrfou_preset(64, "enwik8, bytes", 1.06, "235M and 219M"),
    "text8-alrfou-12l": _alrfou_preset(12, "text8, bytes", 1.18, "44M and 41M"),
    "text8-alrfou-64l": _alrfou_preset(64, "text8, bytes", 1.13, "235M and 219M"),
    "wt103-gcnn-14": _gcnn(_GCNN_14, 37.2, "Gated convolutions with a receptive field of 47 words."),
    "wt103-gcnn-8": _gcnn(((900, 4, 1),) * 8, 44.9, "Gated convolutions with a receptive field of 25 words."),
    "wt103-tcn": Preset(
        recipe=Recipe(
            model=ConvolutionalConfig(
                vocab=_WIKITEXT_103,
                width=400,
                gate="tcn",
                layers=(*((1000, 3, 2**level) for level in range(4)), (400, 3, 16)),
                dropout=0.4,
            ),
            train=TrainConfig(lanes=16, segment=80, memory=1, steps=500_000, learning_rate=1e-3, clip=0.4),
            reading=Reading(segment=80, reach=CARRIED),
        ),
        data="WikiText-103, words",
        published="perplexity 45.19",
        note="The paper says 148M. This shape (5 levels of 1,000, embedding 400, tied, so that the last level is 400 "
        "wide) has 132,060,735; 7 levels have 144,068,735. Optimizer, lanes and steps are ours.",
    ),
    "wt103-qrnn": Preset(
        recipe=Recipe(
            model=ConvolutionalConfig(
                vocab=_WIKITEXT_103,
                width=400,
                gate="qrnn",
                layers=((2500, 2, 1), (2500, 1, 1), (2500, 1, 1), (400, 1, 1)),
                dropout=0.1,
            ),
            train=TrainConfig(
                lanes=60,
                segment=140,
                memory=1,
                steps=14 * _EPOCH // (60 * 140),
                learning_rate=1e-3,
                schedule="constant",
                cooldown=2 * _EPOCH // (60 * 140),
                floor=0.1,
            ),
            reading=Reading(segment=140, reach=CARRIED),
        ),
        data="WikiText-103, words",
        published="perplexity 33.0 (dev 32.0)",
        note="The paper says 151M: 150,885,435 if the first layer's filters are 1 wide; 2 wide, as in the released "
        "code and here, 153,885,435. The learning rate falls over the last two epochs; theirs drops at once.",
    ),
}
