"""Presets: recipes by name, the published ones with their published results, and small ones for a CPU."""

from difflib import get_close_matches

from segue.errors import ConfigError
from segue.presets.baselines import BASELINES
from segue.presets.encoders import ENCODERS
from segue.presets.parts import Preset
from segue.presets.published import PUBLISHED
from segue.presets.small import SMALL
from segue.presets.sparse import SPARSE
from segue.presets.translation import TRANSLATION

__all__ = ["PRESETS", "Preset", "preset"]

PRESETS: dict[str, Preset] = SMALL | SPARSE | PUBLISHED | BASELINES | TRANSLATION | ENCODERS


def preset(name: str) -> Preset:
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no preset '{name}'; {hint}")
    return PRESETS[name]
