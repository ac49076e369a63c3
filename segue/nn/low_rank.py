"""Low-rank self-attention of encoders by its name: Linformer's learned mixtures, or Nyström's landmarks."""

from segue.config import BothSidedConfig
from segue.nn.linformer import Linformer, Mixing
from segue.nn.nystrom import Landmarks, Nystrom

LowRank = Mixing | Landmarks
"""What takes the place of one layer's full self-attention."""


def build_low_rank(config: BothSidedConfig, layers: int, longest: int) -> Linformer | Nystrom:
    """For all layers of an encoder whose texts have at most `longest` tokens."""
    return Linformer(config, layers, longest) if config.attention == "linformer" else Nystrom(config)
