"""Loads Hugging Face's BERT folders (config.json, model.safetensors) as an `Encoder`."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from segue.config import EncoderConfig
from segue.errors import SourceError
from segue.nn.encoder import Encoder
from segue.nn.fit import check_fit, check_size, too_large
from segue.text.parsing import read_object

NAMES = {
    "attention.self.query": "attention.query",
    "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.outer",
    "output.LayerNorm": "feed_forward_norm",
}
"""Weight names in each layer, theirs and ours. Key and value are not listed: they are one matrix in segue."""


def load_bert(folder: Path | str) -> Encoder:
    """The encoder of a BERT folder, in evaluation mode. Task heads are ignored."""
    folder = Path(folder)
    config = _config(folder)
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise SourceError(
            f"{folder} has no readable model.safetensors ({error}); save the model with safe_serialization=True"
        ) from None
    theirs = {name.removeprefix("bert."): weight for name, weight in weights.items()}
    try:
        ours = _ours(theirs, config.layers)
    except (KeyError, RuntimeError) as error:
        raise SourceError(f"the weights in {folder} do not fit its config.json: {error}") from None
    check_size(config, ours, str(folder), SourceError)
    with torch.device("meta"), too_large(str(folder), SourceError):
        model = Encoder(config)
    check_fit(ours, dict(model.state_dict()), str(folder), SourceError)
    model.load_state_dict(ours, assign=True)
    return model.eval()


def _config(folder: Path) -> EncoderConfig:
    theirs = read_object(folder / "config.json")
    supported = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    for name, value in supported.items():
        if theirs.get(name, value) != value:
            raise SourceError(f"{folder}: {name} is {theirs[name]!r}; only {value!r} is supported")
    if theirs.get("position_embedding_type", "absolute") != "absolute":
        raise SourceError(
            f"{folder}: its positions are {theirs['position_embedding_type']}; only absolute ones are supported"
        )
    try:
        return EncoderConfig(
            vocab=theirs["vocab_size"],
            width=theirs["hidden_size"],
            layers=theirs["num_hidden_layers"],
            heads=theirs["num_attention_heads"],
            feedforward=theirs["intermediate_size"],
            max_positions=theirs["max_position_embeddings"],
            types=theirs["type_vocab_size"],
            dropout=theirs.get("hidden_dropout_prob", 0.0),
            attention_dropout=theirs.get("attention_probs_dropout_prob", 0.0),
        )
    except KeyError as error:
        raise SourceError(f"{folder}/config.json has no {error}") from None


def _ours(theirs: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    ours = {
        "words.weight": theirs["embeddings.word_embeddings.weight"],
        "places.weight": theirs["embeddings.position_embeddings.weight"],
        "types.weight": theirs["embeddings.token_type_embeddings.weight"],
    }
    for part in ("weight", "bias"):
        ours[f"norm.{part}"] = theirs[f"embeddings.LayerNorm.{part}"]
        ours[f"pooler.{part}"] = theirs[f"pooler.dense.{part}"]
        for layer in range(layers):
            inside = f"encoder.layer.{layer}"
            for name, own in NAMES.items():
                ours[f"blocks.{layer}.{own}.{part}"] = theirs[f"{inside}.{name}.{part}"]
            pair = [theirs[f"{inside}.attention.self.{name}.{part}"] for name in ("key", "value")]
            ours[f"blocks.{layer}.attention.key_value.{part}"] = torch.cat(pair)
    return ours
