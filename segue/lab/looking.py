"""Where the tokens of a text look, as views of one page: in a language model, an encoder or a translator.

Letters: H heads, T queries, S keys.
"""

from pathlib import Path

import torch

from segue.checkpoint import Bundle, Translator
from segue.config import Reach
from segue.errors import InputError
from segue.infer.trace import TERMS, recording, recording_terms
from segue.infer.translate import looked_at
from segue.interop.bert import load_bert
from segue.lab.attention_page import View
from segue.nn.xl import TransformerXL
from segue.text.wordpiece import read_wordpiece

LOOKING, REMEMBERED = 64, 192
"""Tokens that look, and tokens in memory, unless someone asks for others: what a page can hold and an eye can see."""


@torch.no_grad()
def reader_views(bundle: Bundle, text: bytes, *, segment: int | None, memory: int | None) -> list[View]:
    """A view for each layer, of the text's last tokens over themselves and over what the memory holds before them.

    By default the second half of the text looks, and the first half is memory.
    """
    model = bundle.model
    if not isinstance(model, TransformerXL):
        raise InputError("this model has no attention to show; its state is all that it looks at")
    if bundle.tokenizer is None:
        raise InputError("this bundle has no tokenizer, so no text can be read with it")
    ids, pieces = bundle.tokenizer.spans(text)
    if len(ids) < 2:
        raise InputError(f"found {len(ids)} tokens of text; two are needed for one to look at another")
    looking = min(segment or min(LOOKING, len(ids) // 2), len(ids))
    held = min(REMEMBERED if memory is None else memory, len(ids) - looking)
    tokens = torch.as_tensor(ids, dtype=torch.int64)[None]
    reach = bundle.reading.reach
    positions = "onward" if held else reach.positions
    memory_ = model.start(reach=Reach(memory=held, clamp=reach.clamp, positions=positions))
    past = tokens[:, len(ids) - looking - held : len(ids) - looking]
    if held:
        _, memory_ = model(past, memory_)
    with recording(model) as seen, recording_terms(model) as terms:
        model(tokens[:, len(ids) - looking :], memory_)
    words = [piece.decode(errors="replace") for piece in pieces[len(ids) - looking - held :]]
    return [
        View(f"layer {layer + 1}", words[held:], words, seen[name][0], held, _alone(terms[name]))
        for layer, name in enumerate(sorted(seen, key=_number))
    ]


def _number(name: str) -> int:
    return int(name.split(".")[1])


def _alone(terms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that each term would make if it alone decided."""
    if len(terms) == 1:
        return {}
    return {TERMS[name]: term[0].softmax(dim=-1) for name, term in terms.items()}


@torch.no_grad()
def encoder_views(folder: Path, text: str) -> list[View]:
    """A view for each layer of an encoder in a BERT folder; every token sees every other."""
    model = load_bert(folder)
    files = [folder / name for name in ("tokenizer.json", "vocab.txt") if (folder / name).is_file()]
    if not files:
        raise InputError(f"{folder} has neither tokenizer.json nor vocab.txt, so no text can be read with it")
    wordpiece = read_wordpiece(files[0])
    padded = wordpiece.encode([text], model.config.max_positions)
    if padded.truncated:
        raise InputError(
            f"the text has more tokens than the {model.config.max_positions} that the encoder can read"
        )
    words = [wordpiece.file.id_to_token(int(token)) or "" for token in padded.input_ids[0]]
    with recording(model) as seen:
        model(torch.from_numpy(padded.input_ids))
    return [
        View(f"layer {layer + 1}", words, words, seen[name][0])
        for layer, name in enumerate(sorted(seen, key=_number))
    ]


def is_encoder(folder: Path) -> bool:
    """Whether this is a BERT folder, which holds no bundle of ours."""
    config = folder / "config.json"
    return config.is_file() and '"segue-' not in config.read_text(encoding="utf-8", errors="replace")


def translator_views(translator: Translator, source: bytes, text: str) -> list[View]:
    """The encoder's layers, the decoder's, and the decoder's over the encoder's."""
    words, written, weights = looked_at(translator, source, text)
    asking = ["<start>", *written[:-1]]
    views = []
    for name, seen in weights.items():
        side, layer, kind = name.split(".")
        if side == "encoder":
            views.append(View(f"encoder, layer {int(layer) + 1}", words, words, seen))
        elif kind == "cross":
            views.append(View(f"decoder to encoder, layer {int(layer) + 1}", asking, words, seen))
        else:
            views.append(View(f"decoder, layer {int(layer) + 1}", asking, asking, seen))
    return views
