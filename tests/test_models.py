"""One table from a kind of model to all that belongs to it."""

import pytest

from segue.config import Settings
from segue.kinds import KINDS, kind_of
from segue.nn.models import CLASSES


def test_every_kind_has_a_class() -> None:
    assert CLASSES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_belongs_to_its_config(name: str) -> None:
    kind = KINDS[name]
    assert issubclass(kind.config, Settings)
    small = kind.config(vocab=9, width=8, **({"heads": 2} if "heads" in kind.config.model_fields else {}))
    assert getattr(small, "kind") == name  # noqa: B009  (not of all settings)
    model = CLASSES[name](small)
    assert getattr(model, "config") == small  # noqa: B009
    assert kind_of({"model": {"kind": name}}) is kind


def test_what_names_no_kind_is_a_transformer_xl() -> None:
    for values in ({}, {"model": 3}, {"model": {}}, {"model": {"kind": "no such"}}):
        assert kind_of(values) is KINDS["xl"]
