"""The attention page holds what was seen, and nothing in it can break out of it."""

import base64
import json
import re

import numpy as np
import pytest
import torch

from segue.errors import InputError
from segue.lab.attention_page import View, attention_page


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found.group(1)))


def test_weights_come_back_as_they_went_in() -> None:
    weights = torch.rand(2, 3, 4).softmax(dim=-1)
    view = View("layer 1", ["a", "b", "c"], ["x", "y", "z", "w"], weights, held=1)
    kept = data_of(attention_page("Title", "told", [view]))["views"][0]  # type: ignore[index]
    assert (kept["queries"], kept["keys"], kept["heads"], kept["held"]) == (list("abc"), list("xyzw"), 2, 1)
    found = np.frombuffer(base64.b64decode(kept["weights"]), dtype=np.uint8).reshape(2, 3, 4) / 255
    assert np.abs(found - weights.numpy()).max() <= 0.5 / 255 + 1e-6


def test_words_cannot_end_the_script_nor_titles_be_markup() -> None:
    hostile = "</script><b>"
    page = attention_page(hostile, hostile, [View(hostile, [hostile], [hostile], torch.ones(1, 1, 1))])
    assert "</script><b>" not in page
    assert data_of(page)["told"] == hostile
    assert "http" not in re.sub(r"<!doctype.*?>", "", page)  # nothing is fetched


def test_nothing_to_show_is_said() -> None:
    with pytest.raises(InputError, match="no attention to show"):
        attention_page("t", "t", [])
