"""Writes what the presets weigh to `segue/presets/sizes.json`. Run it when a preset or its calculation has changed:

python tests/record_sizes.py
"""

import json
from pathlib import Path

import segue.presets
from segue.footprint import sizes
from segue.presets import PRESETS
from segue.presets.sizes import recipe_digest

if __name__ == "__main__":
    recorded = {recipe_digest(preset.recipe): sizes(preset.recipe) for preset in PRESETS.values()}
    lines = ",\n".join(
        f"  {json.dumps(digest)}: {json.dumps(each)}" for digest, each in sorted(recorded.items())
    )
    Path(segue.presets.__file__).with_name("sizes.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
