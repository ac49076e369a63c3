"""Translation beside CTranslate2 in float32, on the same weights: `transformer-base`'s shape, 32 sentences.

    python bench/translating.py [--threads 2] [--rounds 5]

Needs segue and ctranslate2 (`make bench` installs them). The weights are random, so that hardly a text ends by
itself and both sides write equally much; how many texts are equal is told. Both take turns, and the best round of
each counts. With --threads 1 the clock is the processor's, which other processes do not disturb.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from machine import best_in_turns, environment
from segue.checkpoint import Translator
from segue.config import Seq2SeqConfig, Translating
from segue.infer.translate import translate
from segue.interop.ctranslate2_export import export_ctranslate2
from segue.nn.models import build_translator
from segue.presets import preset
from segue.text.tokenizer import word_tokenizer

RESULTS = Path(__file__).parent / "results/translating.json"
SENTENCES, SHORTEST, LONGEST = 32, 10, 30
SEARCHES = {"greedy": 1, "beam 4": 4}
WORDS = 32_000


def random_translator() -> Translator:
    """A translator of transformer-base's shape and made-up words."""
    torch.manual_seed(0)
    words = word_tokenizer(["<unk>", *(f"w{number}" for number in range(WORDS))])
    shape = preset("transformer-base").recipe.model
    assert isinstance(shape, Seq2SeqConfig)
    config = shape.model_copy(update={"vocab": words.size + 2})
    return Translator(build_translator(config).eval(), Translating(), words, words)


def searches(
    translator: Translator, theirs: Any, sentences: list[str], beam_width: int
) -> dict[str, Callable[[], list[str]]]:
    """Both sides' translations of the same sentences, as functions."""
    how = Translating(beam_width=beam_width, longest=LONGEST, penalty=0.0)

    def ours() -> list[str]:
        return [
            best[0].text
            for best in translate(translator, [one.encode() for one in sentences], translating=how)
        ]

    def other() -> list[str]:
        found = theirs.translate_batch(
            [one.split() for one in sentences],
            beam_size=beam_width,
            length_penalty=0.0,
            max_decoding_length=LONGEST,
            min_decoding_length=0,
            suppress_sequences=[["<s>"]],
        )
        return [" ".join(one.hypotheses[0]) for one in found]

    return {"segue": ours, "ctranslate2": other}


def measured(calls: dict[str, Callable[[], list[str]]], rounds: int, threads: int) -> dict[str, Any]:
    texts = {name: call() for name, call in calls.items()}
    equal = sum(one == other for one, other in zip(*texts.values(), strict=True))
    words = sum(len(text.split()) for text in texts["segue"])
    return {**best_in_turns(calls, rounds, threads), "equal": equal, "words": words}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS)
    asked = parser.parse_args()
    import ctranslate2

    torch.set_num_threads(asked.threads)
    translator = random_translator()
    draw = random.Random(0)  # noqa: S311
    sentences = [
        " ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(SHORTEST, LONGEST)))
        for _ in range(SENTENCES)
    ]
    with tempfile.TemporaryDirectory() as folder:
        export_ctranslate2(translator, Path(folder) / "model")
        theirs = ctranslate2.Translator(
            str(Path(folder) / "model"), compute_type="float32", inter_threads=1, intra_threads=asked.threads
        )
    rows = {}
    for name, beam_width in SEARCHES.items():
        row = measured(
            searches(translator, theirs, sentences, beam_width),
            2 if asked.quick else asked.rounds,
            asked.threads,
        )
        rows[name] = row
        print(
            f"{name:8}: segue {row['segue']:.2f} s, ctranslate2 {row['ctranslate2']:.2f} s, ratio "
            f"{row['segue'] / row['ctranslate2']:.2f}; {row['equal']} of {SENTENCES} texts equal",
            flush=True,
        )
    about = {**environment(), "ctranslate2": ctranslate2.__version__, "threads": asked.threads}
    asked.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
