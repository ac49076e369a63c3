"""Language models for 2 CPU cores: minutes of training."""

from segue.config import (
    ConvolutionalConfig,
    KernelConfig,
    Reach,
    Reading,
    RecurrentConfig,
    UniversalConfig,
    XLConfig,
)
from segue.presets.parts import Preset, on_two_cores, reading
from segue.recipe import Recipe


def _convolutional(
    model: ConvolutionalConfig, note: str, optimizer: str = "adamw", learning_rate: float = 3e-3
) -> Preset:
    return Preset(
        recipe=Recipe(
            model=model,
            train=on_two_cores(
                steps=800, lanes=32, segment=64, memory=1, optimizer=optimizer, learning_rate=learning_rate
            ),
            reading=Reading(segment=64, reach=Reach(memory=1)),
        ),
        data="stdlib, bytes",
        published="",
        note=note,
    )


SMALL: dict[str, Preset] = {
    "stdlib-demo": Preset(
        recipe=Recipe(
            model=XLConfig(vocab=256, width=192, layers=4, heads=6),
            train=on_two_cores(
                steps=800, lanes=32, segment=64, memory=64, optimizer="muon", learning_rate=4e-3
            ),
            reading=reading(64, 256, 127),
        ),
        data="stdlib, bytes",
        published="",
        note="For 2 CPU cores and about 4 minutes.",
    ),
    "stdlib-bpe": Preset(
        recipe=Recipe(
            model=XLConfig(vocab=4096, width=192, layers=4, heads=3),
            train=on_two_cores(
                steps=700, lanes=32, segment=64, memory=64, optimizer="muon", learning_rate=6e-3
            ),
            reading=reading(64, 256, 127),
        ),
        data="stdlib, BPE of 4,096 symbols",
        published="",
        note="For 2 CPU cores and about 4 minutes: what `make demo` trains.",
    ),
    "stdlib-lstm": Preset(
        recipe=Recipe(
            model=RecurrentConfig(vocab=256, width=344, layers=2),
            train=on_two_cores(
                steps=800, lanes=32, segment=64, memory=1, optimizer="adamw", learning_rate=3e-3
            ),
            reading=Reading(segment=64, reach=Reach(memory=1)),
        ),
        data="stdlib, bytes",
        published="",
        note="An LSTM to compare with stdlib-demo: as many parameters, the same text; for 2 CPU cores.",
    ),
    "stdlib-linear": Preset(
        recipe=Recipe(
            model=KernelConfig(vocab=256, width=192, layers=4, heads=6),
            train=on_two_cores(
                steps=800, lanes=32, segment=64, memory=1, optimizer="muon", learning_rate=4e-3
            ),
            reading=Reading(segment=64, reach=Reach(memory=1)),
        ),
        data="stdlib, bytes",
        published="",
        note="Linear attention to compare with stdlib-demo: a memory of constant size; for 2 CPU cores.",
    ),
    "stdlib-universal": Preset(
        recipe=Recipe(
            model=UniversalConfig(vocab=256, width=384, heads=6, steps=4, halting="act"),
            train=on_two_cores(
                steps=800,
                lanes=32,
                segment=64,
                memory=64,
                optimizer="muon",
                learning_rate=4e-3,
                ponder=0.001,
            ),
            reading=reading(64, 256, 127),
        ),
        data="stdlib, bytes",
        published="",
        note="A Universal Transformer to compare with stdlib-demo: as many parameters, in one block; for 2 CPU cores.",
    ),
    "stdlib-gcnn": _convolutional(
        ConvolutionalConfig(vocab=256, width=176, layers=((176, 5, 1),) * 6),
        "Gated convolutions to compare with stdlib-demo: a receptive field of 25 bytes; for 2 CPU cores.",
    ),
    "stdlib-tcn": _convolutional(
        ConvolutionalConfig(
            vocab=256, width=224, gate="tcn", layers=tuple((224, 3, 2**level) for level in range(6))
        ),
        "A TCN to compare with stdlib-demo: a receptive field of 253 bytes; for 2 CPU cores.",
        "muon",
        4e-3,
    ),
    "stdlib-qrnn": _convolutional(
        ConvolutionalConfig(vocab=256, width=320, gate="qrnn", layers=((320, 2, 1),) * 3),
        "A QRNN to compare with stdlib-demo and stdlib-lstm: as many parameters; for 2 CPU cores.",
        learning_rate=4e-3,
    ),
    "stdlib-alrfou": Preset(
        recipe=Recipe(
            model=XLConfig(
                vocab=256, width=192, layers=4, heads=2, encoding="per-layer", max_positions=64, tied=False
            ),
            train=on_two_cores(
                steps=800,
                lanes=32,
                segment=64,
                memory=0,
                positions="restart",
                intermediate=400,
                ahead=2,
                optimizer="muon",
                learning_rate=4e-3,
            ),
            reading=Reading(segment=64, reach=Reach(memory=0, positions="restart")),
        ),
        data="stdlib, bytes",
        published="",
        note="Al-Rfou's Transformer without memory, with its auxiliary losses, to compare with stdlib-demo; "
        "for 2 CPU cores.",
    ),
    "enwik8-cpu": Preset(
        recipe=Recipe(
            model=XLConfig(vocab=4096, width=192, layers=4, heads=3),
            train=on_two_cores(
                steps=2600, lanes=64, segment=64, memory=64, optimizer="muon", learning_rate=4e-3
            ),
            reading=reading(64, 256, 127),
        ),
        data="enwik8, BPE of 4,096 symbols",
        published="",
        note="For 2 CPU cores and half an hour. A token is 2 or 3 bytes; scores are still in bits per byte.",
    ),
    "enwik8-cpu-ngrams": Preset(
        recipe=Recipe(
            model=XLConfig(vocab=4096, width=192, layers=4, heads=3, ngrams=3, ngram_rows=65_536),
            train=on_two_cores(
                steps=1900, lanes=64, segment=64, memory=64, optimizer="muon", learning_rate=4e-3
            ),
            reading=reading(64, 256, 127),
        ),
        data="enwik8, BPE of 4,096 symbols",
        published="",
        note="For 2 CPU cores and half an hour: enwik8-cpu with n-gram embeddings. Ahead of it in the first minutes; "
        "after half an hour not shown to be better (1.61 bits per byte).",
    ),
}
