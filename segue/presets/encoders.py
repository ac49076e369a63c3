"""Encoders: the published BERT, and a small one for a CPU."""

from segue.config import EncoderConfig, EncoderReading, HeadConfig
from segue.presets.parts import Preset
from segue.recipe import EncoderRecipe, EncoderTrainConfig


def _fine_tuned(
    task: HeadConfig,
    data: str,
    *,
    length: int,
    batch: int = 32,
    learning_rate: float = 1e-4,
    steps: int = 600,
) -> Preset:
    """A few epochs of some thousand examples. With --from, the encoder's own shape takes the place of the model."""
    return Preset(
        recipe=EncoderRecipe(
            model=EncoderConfig(
                vocab=8192,
                width=256,
                layers=4,
                heads=4,
                max_positions=length,
                dropout=0.1,
                attention_dropout=0.1,
            ),
            task=task,
            train=EncoderTrainConfig(
                steps=steps,
                batch=batch,
                optimizer="adamw",
                learning_rate=learning_rate,
                schedule="linear",
                warmup=steps // 10,
                weight_decay=0.01,
                clip=1.0,
                validate_every=steps // 6,
                save_every=steps // 6,
            ),
            reading=EncoderReading(max_length=length),
        ),
        data=f"labelled examples (`segue prepare-examples --task {data}`)",
        published="",
        note="Fine-tunes the encoder that --from names; without one, 4 layers of 256 that begin with nothing.",
    )


ENCODERS: dict[str, Preset] = {
    "bert-cpu": Preset(
        recipe=EncoderRecipe(
            model=EncoderConfig(vocab=8192, width=256, layers=4, heads=4, max_positions=128, local_heads=2),
            task=HeadConfig(task="masked"),
            train=EncoderTrainConfig(
                steps=2000,
                batch=64,
                optimizer="muon",
                learning_rate=4e-3,
                schedule="constant",
                warmup=100,
                cooldown=400,
                floor=0.02,
                beta2=0.98,
                weight_decay=0.01,
                clip=1.0,
                short_steps=1600,
                short_length=64,
                masked=0.4,
                validate_every=200,
                validate_tokens=50_000,
                save_every=100,
            ),
            reading=EncoderReading(max_length=128, pooling="mean"),
        ),
        data="any text in WordPiece (`segue prepare … --tokenizer wordpiece`)",
        published="",
        note="For one CPU core and about 76 minutes, by the processor time of its steps.",
    ),
    "classify-cpu": _fine_tuned(HeadConfig(task="text", labels=("no", "yes")), "classify", length=128),
    "pairs-cpu": _fine_tuned(
        HeadConfig(task="text", labels=("no", "yes"), pairs=True),
        "pairs",
        length=128,
        learning_rate=2e-4,
        steps=500,
    ),
    "tag-cpu": _fine_tuned(
        HeadConfig(task="tags", labels=("O", "B", "I")), "tag", length=128, learning_rate=2e-4
    ),
    "answer-cpu": _fine_tuned(HeadConfig(task="span"), "answer", length=384, batch=16, learning_rate=2e-4),
    "bert-base": Preset(
        recipe=EncoderRecipe(
            model=EncoderConfig(vocab=30_522, dropout=0.1, attention_dropout=0.1),
            task=HeadConfig(task="masked", next_sentence=True),
            train=EncoderTrainConfig(
                steps=1_000_000,
                batch=256,
                optimizer="adamw",
                learning_rate=1e-4,
                schedule="linear",
                warmup=10_000,
                weight_decay=0.01,
                epsilon=1e-6,
                clip=1.0,
                short_steps=900_000,
                short_length=128,
                validate_every=10_000,
                save_every=10_000,
            ),
            reading=EncoderReading(max_length=512),
        ),
        data="Wikipedia and BooksCorpus, 30,522 WordPiece symbols",
        published="79.6 GLUE, 88.5 F1 on SQuAD 1.1 (fine-tuned)",
        note="The published Adam has no bias correction; AdamW has.",
    ),
}
