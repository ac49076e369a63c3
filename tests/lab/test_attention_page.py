"""The attention page holds the weights, text in it cannot become markup, and a browser shows the chosen token."""

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from segue.checkpoint import Bundle
from segue.config import Reach, Reading
from segue.errors import InputError
from segue.infer.trace import TERMS
from segue.interop.encoders import is_encoder_folder, load_encoder
from segue.lab.attention_page import View, attention_page
from segue.lab.attention_views import encoder_views, reader_views
from segue.text.tokenizer import ByteTokenizer
from support import build, shape

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def data_of(page: str) -> dict[str, object]:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert script is not None
    return dict(json.loads(script.group(1)))


def test_weights_come_back_as_they_went_in() -> None:
    weights, term = torch.rand(2, 3, 4).softmax(dim=-1), torch.rand(2, 3, 4).softmax(dim=-1)
    view = View("layer 1", ["a", "b", "c"], ["x", "y", "z", "w"], weights, memory=1, terms={"(a)": term})
    kept = data_of(attention_page("Title", "subtitle", [view]))["views"][0]  # type: ignore[index]
    assert (kept["queries"], kept["keys"], kept["heads"], kept["memory"]) == (list("abc"), list("xyzw"), 2, 1)
    for text, given in ((kept["weights"], weights), (kept["terms"][0]["weights"], term)):
        decoded = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(2, 3, 4) / 255
        assert np.abs(decoded - given.numpy()).max() <= 0.5 / 255 + 1e-6


HOSTILE = "<!-- <script> </script><b> \u2028 \u2029 __TITLE__ __DATA__"
"""A comment and a script that would hide the end of the page's own script; line separators; template placeholders."""


def test_words_cannot_end_the_script_nor_titles_be_markup() -> None:
    page = attention_page(HOSTILE, HOSTILE, [View(HOSTILE, [HOSTILE], [HOSTILE], torch.ones(1, 1, 1))])
    assert HOSTILE not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # the name of SVG; nothing is fetched


def test_the_pages_data_holds_no_markup_and_parses_back_to_what_was_given() -> None:
    view = View(HOSTILE, [HOSTILE], [HOSTILE], torch.ones(1, 1, 1))
    page = attention_page("Title", HOSTILE, [view])
    text = page.partition('id="data">')[2].partition("</script>")[0]
    assert not set(text) & set("<\u2028\u2029")
    data = json.loads(text)
    assert data["subtitle"] == HOSTILE
    assert (data["views"][0]["name"], data["views"][0]["keys"]) == (HOSTILE, [HOSTILE])


def test_nothing_to_show_is_said() -> None:
    with pytest.raises(InputError, match="no attention to show"):
        attention_page("t", "t", [])


def a_bundle(encoding: str = "xl") -> Bundle:
    model = build(shape(encoding, vocab=256)).float()
    return Bundle(model, Reading(segment=8, reach=Reach(memory=8)), ByteTokenizer())


def test_the_second_half_of_a_text_looks_and_the_first_is_memory() -> None:
    views = reader_views(a_bundle(), b"abcdefghij", segment=None, memory=None)
    assert [view.name for view in views] == ["layer 1", "layer 2"]
    for view in views:
        assert ("".join(view.queries), "".join(view.keys), view.memory) == ("fghij", "abcdefghij", 5)
        assert list(view.terms) == list(TERMS.values())
        for weights in (view.weights, *view.terms.values()):
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 5))


def test_a_model_without_distances_has_no_terms_and_asked_lengths_are_kept() -> None:
    (first, _) = reader_views(a_bundle("sinusoidal"), b"abcdefghij", segment=3, memory=4)
    assert ("".join(first.queries), "".join(first.keys), first.memory) == ("hij", "defghij", 4)
    assert not first.terms


def test_a_text_too_short_is_said() -> None:
    with pytest.raises(InputError, match="the text has 1 tokens; attention needs at least two"):
        reader_views(a_bundle(), b"a", segment=None, memory=None)


def bert_folder(folder: Path) -> Path:
    """A BERT of one layer with random weights."""
    pieces = "[PAD] [UNK] [CLS] [SEP] the animal was too tired it".split()  # noqa: SIM905
    width, inner = 8, 12
    sizes = {
        "vocab_size": len(pieces),
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    sizes |= {"intermediate_size": inner, "max_position_embeddings": 8, "type_vocab_size": 2}
    layer = "encoder.layer.0"
    shapes = {
        "embeddings.word_embeddings.weight": (len(pieces), width),
        "embeddings.position_embeddings.weight": (8, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        **{f"{layer}.attention.self.{part}": (width, width) for part in ("query", "key", "value")},
        f"{layer}.attention.output.dense": (width, width),
        f"{layer}.intermediate.dense": (inner, width),
        f"{layer}.output.dense": (width, inner),
        "pooler.dense": (width, width),
        **{
            f"{name}.LayerNorm": (width,)
            for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output")
        },
    }
    weights = {}
    for name, size in shapes.items():
        weights[name if "embeddings.weight" in name else f"{name}.weight"] = torch.randn(size)
        if not name.endswith("embeddings.weight"):
            weights[f"{name}.bias"] = torch.randn(size[0])
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **sizes}))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


def test_every_token_of_an_encoder_looks_at_every_other(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    assert is_encoder_folder(folder)
    encoder = load_encoder(folder)
    (view,) = encoder_views(encoder, "The animal was tired")
    assert view.queries == view.keys == ["[CLS]", "the", "animal", "was", "tired", "[SEP]"]
    assert (view.memory, view.terms) == (0, {})
    assert bool((view.weights > 0).all())
    with pytest.raises(InputError, match="more tokens than the 8"):
        encoder_views(encoder, "the animal was too tired it was too tired")


def test_a_bundle_of_a_language_model_is_no_encoder(tmp_path: Path) -> None:
    a_bundle().save(tmp_path / "bundle")
    assert not is_encoder_folder(tmp_path / "bundle")
    assert not is_encoder_folder(tmp_path)


def seen_in_a_browser(page: str, folder: Path, asked: str = "", then: str = "") -> str:
    """The page's elements after its script ran, and after a visitor's actions."""
    if BROWSER is None:
        pytest.skip("there is no chromium to open the page in")
    file = folder / "page.html"
    file.write_text(page.replace("</body>", f"<script>{then}</script></body>"), encoding="utf-8")
    told = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
            f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"{file.as_uri()}#{asked}",
        ],
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    return told.stdout.decode()


def test_a_browser_shows_where_the_token_looks_that_is_pointed_at(tmp_path: Path) -> None:
    weights = torch.zeros(2, 2, 4)
    weights[0, 0, 0], weights[0, 1, 3], weights[1, :, 1] = 1, 1, 1
    term = torch.zeros(2, 2, 4)
    term[:, :, 2] = 1
    view = View("layer 1", ["c", "d"], list("abcd"), weights, memory=2, terms={"(d)": term})
    page = attention_page("Title", "subtitle", [view])
    dom = seen_in_a_browser(page, tmp_path, "view=0&head=0")
    assert summary(dom) == "“d” attends most to “d” (100 %); 0 % of its attention is on memory"
    assert arrows(dom) == ["arrow"]
    point = "document.querySelectorAll('.query')[0].dispatchEvent(new MouseEvent('mouseenter'))"
    dom = seen_in_a_browser(page, tmp_path, "view=0&head=0", point)
    assert summary(dom) == "“c” attends most to “a” (100 %); 100 % of its attention is on memory"
    assert arrows(dom) == ["arrow over-seam"]
    choose = "$('term').value = 0; $('term').onchange()"
    dom = seen_in_a_browser(page, tmp_path, "view=0&head=1", choose)
    assert summary(dom) == "“d” attends most to “c” (100 %); 0 % of its attention is on memory"


def test_a_browser_shows_all_heads_in_their_colours_one_or_their_mean(tmp_path: Path) -> None:
    weights = torch.zeros(3, 2, 4)
    for head, key in enumerate((0, 1, 3)):
        weights[head, :, key] = 1
    names = ["layer 1", "layer 2"]
    page = attention_page(
        "Title", "subtitle", [View(name, ["c", "d"], list("abcd"), weights) for name in names]
    )
    dom = seen_in_a_browser(page, tmp_path)
    strokes = re.findall(r'class="arrow" data-head="(\d)" style="stroke: ([^;]*)', dom)
    assert [head for head, _ in strokes] == ["0", "1", "2"]
    assert len({colour for _, colour in strokes}) == 3
    assert dom.count('class="stripes"') == 4
    dom = seen_in_a_browser(page, tmp_path, then="document.querySelectorAll('#heads button')[2].click()")
    assert summary(dom) == "“d” attends most to “d” (100 %)"
    assert (dom.count('class="stripes"'), arrows(dom)) == (0, ["arrow"])
    dom = seen_in_a_browser(page, tmp_path, "view=0&head=-1")
    assert (summary(dom), len(arrows(dom))) == ("“d” attends most to “a” (33 %)", 3)


def test_keys_of_the_keyboard_choose_the_layer(tmp_path: Path) -> None:
    ones = [View(f"layer {key}", ["c"], ["a", "b"], torch.eye(2)[key][None, None]) for key in range(2)]
    page = attention_page("Title", "subtitle", ones)
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp'}));"
    assert summary(seen_in_a_browser(page, tmp_path)) == "“c” attends most to “a” (100 %)"
    for times in (1, 2):  # above the last layer there is none
        assert (
            summary(seen_in_a_browser(page, tmp_path, then=press * times))
            == "“c” attends most to “b” (100 %)"
        )


def test_a_browser_shows_a_text_that_looks_like_markup(tmp_path: Path) -> None:
    page = attention_page("Title", HOSTILE, [View("layer 1", ["c"], [HOSTILE], torch.ones(1, 1, 1))])
    assert summary(seen_in_a_browser(page, tmp_path)).startswith("“c” attends most to “<!-- <script>")


def summary(dom: str) -> str:
    paragraph = re.search(r'<p id="summary"[^>]*>(.*?)</p>', dom, re.DOTALL)
    assert paragraph is not None, "the script stopped before it drew"
    return html.unescape(paragraph.group(1))


def arrows(dom: str) -> list[str]:
    return re.findall(r'class="(arrow[^"]*)"', dom.partition('id="arrows"')[2].partition("</svg>")[0])
