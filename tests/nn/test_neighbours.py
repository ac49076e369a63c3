"""Heads of an encoder that begin with attention to neighbours."""

import pytest
import torch
from torch import Tensor

from segue.config import EncoderConfig
from segue.errors import ConfigError
from segue.nn.encoder import Encoder
from segue.nn.neighbours import neighbour_offsets

SHAPE = {"vocab": 500, "width": 256, "layers": 2, "heads": 4, "max_positions": 128}


def first_weights(**changes: int) -> Tensor:
    """(B, H, S, S) Attention of the first layer, of texts as long as the encoder can read."""
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(**{**SHAPE, **changes})).eval()
    ids = torch.randint(500, (2, 128))
    attentions = encoder(ids, output_attentions=True).attentions
    assert attentions is not None
    return attentions[0].detach()


def test_offsets_go_outwards() -> None:
    assert neighbour_offsets(5) == [1, -1, 2, -2, 3]


def test_local_heads_begin_with_their_neighbours_and_the_others_as_berts() -> None:
    weights = first_weights(local_heads=3)
    for head, offset in enumerate(neighbour_offsets(3)):
        beside = weights[:, head].diagonal(-offset, -2, -1)
        assert beside.mean() > 0.4
        assert (weights[:, head].argmax(-1)[:, 2:-2] == torch.arange(2, 126) - offset).float().mean() > 0.95
    torch.testing.assert_close(weights[:, 3], torch.full((2, 128, 128), 1 / 128), atol=0.01, rtol=0)


def test_without_local_heads_no_head_prefers_neighbours() -> None:
    weights = first_weights()
    assert weights.diagonal(-1, -2, -1).mean() < 0.01


def test_a_start_on_a_device_without_values() -> None:
    with torch.device("meta"):
        assert Encoder(EncoderConfig(**SHAPE, local_heads=2)).places.weight.is_meta


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local_heads": 5}, "more than the 4 heads"),
        ({"local_heads": 1, "max_positions": 129}, "can tell 128 positions apart"),
        ({"local_heads": 1, "embedding": 64}, "as wide as the model"),
        ({"local_heads": -1}, "greater than or equal to 0"),
    ],
)
def test_what_cannot_begin_so_is_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EncoderConfig(**{**SHAPE, **changes})
