"""Settings that had another name in an earlier version: recipes and bundles that use it are read as before."""

from typing import Any

RENAMED = {
    "model": {"inner": "feedforward", "places": "max_positions"},
    "train": {"rate": "learning_rate", "decay": "weight_decay"},
    "translating": {"width": "beam_width"},
}
"""For each group of settings, the old names and what they are called now."""


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a recipe or of a bundle's config.json, under the names of this version."""
    groups = {
        group: {names.get(name, name): value for name, value in values[group].items()}
        for group, names in RENAMED.items()
        if isinstance(values.get(group), dict)
    }
    model = groups.get("model", {})
    if "table" in model:  # one setting for both kinds of tables
        rows = model.pop("table")
        model["max_distance" if model.get("encoding") == "shaw" else "max_positions"] = rows
    return {**values, **groups}


def new_name(old: str) -> str | None:
    """What a setting is called now, if it had another name."""
    return next((names[old] for names in RENAMED.values() if old in names), None)
