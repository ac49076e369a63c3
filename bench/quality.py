"""Quality for a fixed training time: bits per byte of enwik8 after so many minutes from scratch, ours and the peers'.

    segue prepare enwik8 --tokenizer bpe --size 4096 -o data/enwik8-bpe
    make quality DATA=data/enwik8-bpe                     # 30 minutes each, one after the other
    make quality DATA=data/enwik8-bpe MORE="--minutes 5"  # a quick look
    make quality-peers DATA=data/enwik8-bpe MORE="--only x-transformers --set lanes=32 learning_rate=4e-3 --split valid"

    python bench/quality.py --data data/enwik8-bpe --only segue --preset enwik8-cpu-ngrams --keep runs/half-hour

A peer's learning rate schedule follows the clock and ends with its time; ours is timed for a few steps first and gets
as many steps as fit. All read the same tokens, in lanes of one stream, with memory across segments, and are scored in
the same way: every token of the split once, in lanes, with memory, in bits per byte. Peers train with AdamW, or with
our Muon for the matrices of their layers (`--set muon=0.004`; torch's computes in bfloat16, which is slow on CPUs);
`--set` changes their settings, `--split valid` scores them on the validation split, and `--keep` keeps our run.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import segue
from machine import THREADS, environment
from peers import Rows, Size, transfo_xl, x_transformer
from segue.infer.evaluate import evaluate
from segue.text.corpus import Corpus, Stream, open_corpus, read_header
from segue.text.lanes import Lanes
from segue.text.tokenizer import ByteTokenizer
from segue.training.muon import Muon


@dataclass(frozen=True)
class Setting:
    """The hyperparameters of a peer."""

    layers: int = 4
    width: int = 192
    heads: int = 3  # head width 64: x-transformers warns of less
    lanes: int = 16
    segment: int = 64
    memory: int = 64
    learning_rate: float = 2e-3
    decay: float = 0.01
    muon: float = 0.0  # learning rate of Muon for matrices of layers; 0: AdamW for all

    @property
    def size(self) -> Size:
        return Size(self.layers, self.width, self.heads, 4 * self.width)

    @property
    def rows(self) -> Rows:
        return Rows(self.lanes, self.segment, self.memory)


class Peer(Protocol):
    """A model with memory: `read` returns the nats of the targets and the new memory."""

    model: nn.Module

    def read(self, tokens: Tensor, targets: Tensor, memory: Any) -> tuple[Tensor, Any]: ...

    def remember(self, memory: int, clamp: int) -> None:
        """Set the memory length and the clamp length."""


class TransfoXL:
    def __init__(self, setting: Setting, vocab: int) -> None:
        self.model = transfo_xl(setting.size, setting.rows, vocab=vocab)

    def read(self, tokens: Tensor, targets: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """(B, T) Its `labels` would shift once more, so the logits are scored here."""
        output = self.model(tokens, mems=memory)
        logits = output.prediction_scores.view(*tokens.shape, -1)
        return nn.functional.cross_entropy(logits.mT, targets, reduction="none"), output.mems

    def remember(self, memory: int, clamp: int) -> None:
        self.model.transformer.mem_len, self.model.transformer.clamp_len = memory, clamp


class XTransformer:
    def __init__(self, setting: Setting, vocab: int) -> None:
        self.model = x_transformer(setting.size, setting.rows, vocab=vocab)

    def read(self, tokens: Tensor, targets: Tensor, memory: Any) -> tuple[Tensor, Any]:
        logits, memory = self.model(tokens, mems=memory, return_mems=True)
        return nn.functional.cross_entropy(logits.mT, targets, reduction="none"), memory

    def remember(self, memory: int, clamp: int) -> None:
        del clamp  # it has none
        self.model.max_mem_len = memory


TUNED = {"transfo-xl": Setting(), "x-transformers": Setting(learning_rate=3e-3)}
"""The best settings of each in short trials (docs/performance.md)."""

CHOSEN_ON = 100_000
"""Tokens of the validation split on which a peer's memory length is chosen, as ours was."""

PEERS: dict[str, Callable[[Setting, int], Peer]] = {"transfo-xl": TransfoXL, "x-transformers": XTransformer}


def trained_peer(name: str, setting: Setting, corpus: Corpus, minutes: float) -> tuple[Peer, int]:
    """Linear warm-up over 5 % of its time, then a cosine, as ours; gradients clipped at norm 1."""
    peer = PEERS[name](setting, corpus.header.vocab)
    lanes = Lanes(corpus.stream("train"), setting.lanes)
    optimizers = optimizers_of(peer.model, setting)
    rates = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    peer.model.train()
    memory, step, begin = None, 0, time.monotonic()
    while (spent := (time.monotonic() - begin) / (60 * minutes)) < 1:
        for group, rate in rates:
            group["lr"] = rate * min(1.0, 20 * spent) * 0.5 * (1 + math.cos(math.pi * spent))
        segment = lanes.segment(step * setting.segment, setting.segment)
        nats, memory = peer.read(segment.tokens, segment.targets, memory)
        nats.mean().backward()
        nn.utils.clip_grad_norm_(peer.model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 200 == 0:
            print(f"  step {step:,}, {spent:.0%}: {nats.mean().item() / math.log(2):.3f} bits", flush=True)
    return peer, step


def optimizers_of(model: nn.Module, setting: Setting) -> list[torch.optim.Optimizer]:
    """AdamW; or Muon for the matrices of layers, and AdamW for tables, norms and biases."""
    matrices = [
        weight
        for name, weight in model.named_parameters()
        if setting.muon and weight.dim() == 2 and ".layers." in name and "bias" not in name
    ]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in chosen]
    adamw = torch.optim.AdamW(
        others, lr=setting.learning_rate, betas=(0.9, 0.98), weight_decay=setting.decay, fused=True
    )
    if not matrices:
        return [adamw]
    return [Muon(matrices, setting.muon, weight_decay=setting.decay), adamw]


@torch.no_grad()
def nats_of_peer(peer: Peer, stream: Stream, setting: Setting, limit: int | None) -> tuple[float, int]:
    """The total nats of so many tokens, and their number, in as many lanes as in training."""
    lanes = Lanes(stream, setting.lanes)
    each = min((limit or len(stream.ids)) // setting.lanes, lanes.epoch)
    peer.model.eval()
    nats, memory = 0.0, None
    for place in range(0, each, setting.segment):
        segment = lanes.segment(place, min(setting.segment, each - place))
        losses, memory = peer.read(segment.tokens, segment.targets, memory)
        nats += losses.double().sum().item()
    return nats, each * setting.lanes


@dataclass(frozen=True)
class Trial:
    """The data and time that all models get, and the split that they are scored on."""

    data: Path
    minutes: float
    split: str
    limit: int | None

    @property
    def opened(self) -> Corpus:
        """Token ids only: the old tokenizers version in the peers' environment cannot read today's files."""
        return Corpus(self.data, read_header(self.data), ByteTokenizer())

    @property
    def stream(self) -> Stream:
        return self.opened.stream(self.split)

    def bits_per_byte(self, nats: float, tokens: int) -> float:
        """Bits per byte, with the mean bytes per token of the whole split."""
        split = self.stream.split
        return nats / math.log(2) / tokens * split.tokens / split.bytes


def ours(preset: str, trial: Trial, keep: Path | None) -> dict[str, Any]:
    """Our score: the preset with as many steps as fit the time, read with its own settings."""
    from explore import seconds_per_step

    recipe = segue.preset(preset).recipe
    corpus = open_corpus(trial.data)
    steps = max(20, round(60 * trial.minutes / seconds_per_step(recipe, corpus)))
    changes = {"steps": steps, "warmup": steps // 20, "validate_every": 0, "save_every": 0}
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        run = segue.train(recipe, trial.data, keep or Path(folder) / "run")
        seconds = time.monotonic() - begin
        bundle = segue.load(run)
    score = evaluate(bundle.model, corpus.stream(trial.split), recipe.reading, limit=trial.limit, lanes=8)
    bits = trial.bits_per_byte(score.nats, score.tokens)
    return {"preset": preset, "steps": steps, "seconds": round(seconds), "bits per byte": round(bits, 4)}


def theirs(name: str, changes: list[str], trial: Trial) -> dict[str, Any]:
    setting = changed(TUNED[name], changes)
    begin = time.monotonic()
    peer, steps = trained_peer(name, setting, trial.opened, trial.minutes)
    seconds = time.monotonic() - begin
    memory = best_memory(peer, setting, trial)
    peer.remember(memory, setting.segment + setting.memory - 1)
    bits = trial.bits_per_byte(*nats_of_peer(peer, trial.stream, setting, trial.limit))
    return {
        "setting": asdict(setting),
        "read with memory": memory,
        "steps": steps,
        "seconds": round(seconds),
        "bits per byte": round(bits, 4),
    }


def best_memory(peer: Peer, setting: Setting, trial: Trial) -> int:
    """The best memory length on the validation split: that of training, or longer with distances clamped."""
    nats = {}
    for memory in (setting.memory, 2 * setting.memory, 4 * setting.memory):
        peer.remember(memory, setting.segment + setting.memory - 1)
        nats[memory], _ = nats_of_peer(peer, trial.opened.stream("valid"), setting, CHOSEN_ON)
    print(f"  nats of validation by memory: {nats}", flush=True)
    return min(nats, key=lambda memory: nats[memory])


def changed(setting: Setting, changes: list[str]) -> Setting:
    values = dict(change.split("=", 1) for change in changes)
    kinds = {name: type(value) for name, value in asdict(setting).items()}
    return replace(setting, **{name: kinds[name](float(value)) for name, value in values.items()})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a folder made by `segue prepare enwik8`")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--preset", default="enwik8-cpu")
    parser.add_argument(
        "--keep", type=Path, metavar="RUN", help="where the run of ours stays; nowhere by default"
    )
    parser.add_argument("--only", nargs="+", choices=["segue", *PEERS], default=list(PEERS), metavar="NAME")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the peers")
    parser.add_argument("--split", choices=["valid", "test"], default="test", help="the split to score")
    parser.add_argument("--limit", type=int, help="tokens of the split; all by default")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "quality.json")
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    torch.manual_seed(0)
    trial = Trial(words.data, words.minutes, words.split, words.limit)
    asked = {"minutes": words.minutes, "threads": words.threads, "split": words.split, "limit": words.limit}
    results = json.loads(words.out.read_text()) if words.out.exists() else []
    for name in words.only:
        print(f"{name}: {words.minutes:g} minutes", flush=True)
        scores = ours(words.preset, trial, words.keep) if name == "segue" else theirs(name, words.set, trial)
        results.append({"name": name, **asked, **scores, **environment()})
        words.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {scores}", flush=True)


if __name__ == "__main__":
    main()
