"""Language models that look at fewer keys: a window, or a pattern of sparse attention."""

from segue.config import Reach, Reading, XLConfig
from segue.presets.parts import Preset, on_two_cores
from segue.recipe import Recipe, TrainConfig

SPARSE: dict[str, Preset] = {
    "stdlib-window": Preset(
        recipe=Recipe(
            model=XLConfig(vocab=256, width=192, layers=4, heads=6),
            train=on_two_cores(
                steps=800, lanes=8, segment=256, memory=63, span=64, optimizer="muon", learning_rate=4e-3
            ),
            reading=Reading(segment=256, reach=Reach(memory=63, span=64)),
        ),
        data="stdlib, bytes",
        published="",
        note="A window to compare with stdlib-demo: every token sees 64, in training as in reading; for 2 CPU cores.",
    ),
    "stdlib-sparse": Preset(
        recipe=Recipe(
            model=XLConfig(vocab=256, width=192, layers=4, heads=6, pattern="fixed", stride=32, summary=4),
            train=on_two_cores(
                steps=800, lanes=8, segment=256, memory=256, optimizer="muon", learning_rate=4e-3
            ),
            reading=Reading(segment=256, reach=Reach(memory=512, clamp=511)),
        ),
        data="stdlib, bytes",
        published="",
        note="The fixed pattern to compare with stdlib-demo: as many tokens in a step, four times the segment; "
        "for 2 CPU cores.",
    ),
    "enwik8-sparse-30l": Preset(
        recipe=Recipe(
            model=XLConfig(
                vocab=204,
                width=512,
                layers=30,
                heads=8,
                feedforward=2048,
                dropout=0.4,
                norm="pre",
                encoding="sinusoidal",
                pattern="fixed",
                stride=128,
                summary=32,
            ),
            train=TrainConfig(
                lanes=8,
                segment=12_288,
                memory=0,
                positions="restart",
                steps=73_000,  # 80 epochs
                clip=1.0,
            ),
            reading=Reading(segment=12_288, reach=Reach(memory=0, positions="restart")),
        ),
        data="enwik8, the reference's 204 symbols",
        published="0.992 bits per character",
        note="The shape of Child 2019, 95M. Other than there: sinusoids, not learned rows and columns; ReLU, not GELU; "
        "all weights start alike, not the last of each sublayer smaller. Lanes and learning rate are ours.",
    ),
}
