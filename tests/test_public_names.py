"""What users may rely on. Changing this list is a decision, with a line in the CHANGELOG."""

import inspect

import pytest

import segue

NAMES = [
    "Bundle",
    "CellMemory",
    "ConvolutionalConfig",
    "ConvolutionalModel",
    "Encoder",
    "EncoderConfig",
    "EncoderReading",
    "EncoderRecipe",
    "EncoderTrainConfig",
    "FilterMemory",
    "HeadConfig",
    "KVMemory",
    "KernelConfig",
    "KernelMemory",
    "KernelModel",
    "PairTrainConfig",
    "Reach",
    "Reading",
    "Recipe",
    "RecurrentConfig",
    "RecurrentModel",
    "SegueError",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Session",
    "StateMemory",
    "TextEncoder",
    "TrainConfig",
    "TransformerXL",
    "TranslationRecipe",
    "Translator",
    "UniversalConfig",
    "UniversalEncoder",
    "UniversalEncoderConfig",
    "UniversalSeq2Seq",
    "UniversalSeq2SeqConfig",
    "UniversalTransformer",
    "XLConfig",
    "load",
    "load_encoder",
    "load_translator",
    "preset",
    "resume",
    "train",
]


def test_the_public_names() -> None:
    assert segue.__all__ == NAMES
    assert dir(segue) == sorted([*NAMES, "__version__"])
    for name in NAMES:
        assert callable(getattr(segue, name)), name


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Transformer'; it has Bundle"):
        _ = segue.Transformer


def test_the_sentence_that_everything_is_a_client_of() -> None:
    for model in (
        segue.TransformerXL,
        segue.RecurrentModel,
        segue.UniversalTransformer,
        segue.ConvolutionalModel,
    ):
        read = inspect.signature(model.forward)
        assert list(read.parameters) == ["self", "tokens", "memory", "starts", "lengths"]
        assert list(inspect.signature(model.start).parameters) == ["self", "lanes", "reach"]
    for name in ("lanes", "lengths", "seen", "select", "join", "resized", "to", "tensors", "from_tensors"):
        for kind in (segue.StateMemory, segue.KVMemory, segue.CellMemory, segue.FilterMemory):
            assert name in {*dir(kind), *kind.__dataclass_fields__}


def test_rooms_are_reached_from_the_door() -> None:
    assert callable(segue.interop.reference.build)
    assert callable(segue.interop.huggingface.build_transfo_xl)
    with pytest.raises(AttributeError, match="nothing"):
        _ = segue.interop.nothing
