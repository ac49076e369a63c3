"""`segue train`: from a corpus to a model, resumable at any moment."""

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from segue.cli.machine import Threads, matmul_peak, use
from segue.cli.progress import Progress, duration
from segue.cli.terminal import echo, tell
from segue.errors import ConfigError

if TYPE_CHECKING:
    from segue.checkpoint import Bundle, Translator
    from segue.interop.vectors import Vectors
    from segue.recipe import Recipe, TranslationRecipe
    from segue.training.loop import Event

EXAMPLE = "Example: segue train stdlib-demo --data data/stdlib -o runs/demo --set train.steps=500"


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[PRESET|RECIPE.TOML]", help="What to train; see `segue info`.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What `segue prepare` or `prepare-pairs` made.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="The run's folder.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    begin_with: Annotated[
        Path | None, typer.Option("--from", metavar="BUNDLE", help="Fine-tune these weights.")
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Word2Vec or GloVe vectors to begin the embedding with; to keep them: --set train.frozen=true.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run, or extend it.")
    ] = None,
    extend: Annotated[
        Literal["hold", "rewarm", "stretch"] | None,
        typer.Option(
            help="Resuming with more train.steps than were planned: stay at the last rate, follow the schedule "
            "once more, or as if all steps had been planned (the rate jumps).",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights and dropout; the same as --set train.seed.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to compute: cpu, cuda, …; resuming, where it was.")
    ] = None,
    threads: Threads = 0,
) -> None:
    """Train a model, or go on with a run.

    Ctrl-C saves and leaves a run that --resume continues as if it had not been interrupted: with the same threads,
    to the last bit. A finished run is extended by --resume RUN --set train.steps=…; where the rate has fallen by then,
    --extend says how it goes on. With train.schedule=constant and train.cooldown=N only the last N steps have a falling
    rate: extending goes on from before them, as if the longer run had been planned.
    """
    from segue.distributed import process_group
    from segue.launch import local_device
    from segue.training import run as runs

    stop = _stop_on_signals()
    changes = list(change or []) + ([] if seed is None else [f"train.seed={seed}"])
    with process_group() as ranks, Progress("tokens") as progress:
        place = local_device(device or "cpu")
        ranks.on_every_rank(lambda: use(threads, place))
        if resume is not None:
            watch = _Watch(progress, place)
            runs.resume(
                resume,
                changes=changes,
                extend=extend,
                data=data,
                device=device,
                watch=watch,
                interrupted=stop,
            )
            folder = resume
        else:
            chosen, bundle = ranks.on_every_rank(lambda: _recipe(recipe, changes, data, begin_with))
            assert recipe is not None
            assert data is not None
            folder = output or Path("runs") / Path(recipe).stem
            watch = _Watch(progress, place)
            runs.train(
                chosen,
                data,
                folder,
                begin_with=bundle,
                vectors=_vectors(vectors),
                device=device or "cpu",
                watch=watch,
                interrupted=stop,
            )
        if not ranks.first:
            return
    if watch.reason == "interrupted":
        echo(f"stopped at step {watch.step}; go on with: segue train --resume {folder}")
        raise typer.Exit(1)
    echo(f"{folder}: {watch.step:,} steps in {duration(watch.seconds)}. Next: segue eval {folder}")


def _vectors(path: Path | None) -> "Vectors | None":
    from segue.interop.vectors import read_vectors

    return None if path is None else read_vectors(path)


def _recipe(
    name: str | None, changes: list[str], data: Path | None, begin_with: Path | None
) -> "tuple[Recipe | TranslationRecipe, Bundle | Translator | None]":
    """The recipe as changed; a vocabulary that it leaves open is the data's, a model given is the bundle's."""
    from segue.checkpoint import load, load_translator
    from segue.config import TRANSLATORS
    from segue.presets import preset
    from segue.recipe import read_recipe, recipe_of, with_changes
    from segue.text.corpus import open_corpus
    from segue.text.pairs import open_pairs

    if name is None or data is None:
        raise ConfigError("what to train, and on what? segue train PRESET --data DIR, or --resume RUN")
    values = (
        read_recipe(Path(name)) if name.endswith(".toml") else preset(name).recipe.model_dump(mode="json")
    )
    translating = isinstance(values.get("model"), dict) and values["model"].get("kind") in TRANSLATORS
    bundle: Bundle | Translator | None = None
    if begin_with is not None:
        bundle = load_translator(begin_with) if translating else load(begin_with)
        values = {**values, "model": bundle.model.config.model_dump(mode="json")}
    if translating and not name.endswith(".toml") and bundle is None:  # a preset is for any pairs
        header = open_pairs(data).header
        values["model"] |= {"vocab": header.vocab, "source_vocab": header.source_vocab}
    values = with_changes(values, changes)
    if isinstance(values.setdefault("model", {}), dict) and "vocab" not in values["model"]:
        values["model"]["vocab"] = (open_pairs if translating else open_corpus)(data).header.vocab
    return recipe_of(values), bundle


def _stop_on_signals() -> Callable[[], bool]:
    """Ctrl-C or SIGTERM: finish the step, save, leave. A second Ctrl-C leaves at once."""
    asked = False

    def ask(number: int, frame: object) -> None:  # noqa: ARG001
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return lambda: asked


class _Watch:
    """Draws the progress line."""

    def __init__(self, progress: Progress, device: str) -> None:
        self._progress, self._device, self._peak = progress, device, matmul_peak(device)
        self._mean, self._drawn, self._begun = 0.0, 0.0, (0, 0.0)
        self.step, self.seconds, self.reason = 0, 0.0, ""
        self.scale: tuple[float, float, int] | None = None

    def __call__(self, event: "Event") -> None:
        self.step = event.step
        if event.kind == "begin":
            values = event.values
            self.scale = (values["tokens_per_step"], values["flops_per_step"], values["steps"])
            self._bytes, self._begun = values["bytes_per_token"], (event.step, values["seconds"])
        elif event.kind == "step":
            self.seconds = event.values["seconds"]
            self._draw(event.values["nats"])
        elif event.kind == "progress":
            self._progress.update(event.values["task"], event.values["done"], event.values["total"])
        elif event.kind == "valid":
            self._progress.clear()
            echo(f"step {event.step}: validation {_validated(event.values)}")
        elif event.kind in ("note", "warning"):
            self._progress.clear()
            tell(f"{event.kind}: {event.values['text']}")
        elif event.kind == "done":
            self.reason, self.seconds = event.values["reason"], event.values["seconds"]

    def _draw(self, nats: float) -> None:
        self._mean = nats if not self._mean else 0.95 * self._mean + 0.05 * nats
        now = time.monotonic()
        if self.scale is None or now - self._drawn < (0.5 if self._progress.terminal else 10):
            return
        self._drawn = now
        tokens, flops, steps = self.scale
        speed = (self.step - self._begun[0]) / max(1e-9, self.seconds - self._begun[1])
        bits = f"  {self._mean / math.log(2) / self._bytes:.4f} bits/byte" if self._bytes else ""
        self._progress.show(
            f"step {self.step:,}/{steps:,}  {self._mean:.4f} nats{bits}  "
            f"{tokens * speed:,.0f} tokens/s  {self._share(flops * speed)}"
            f"{duration((steps - self.step) / speed)} left"
        )

    def _share(self, flops: float) -> str:
        """How near to the machine's limit, which is measured again if it is passed: others may have computed."""
        if self._peak and flops > self._peak:
            again = matmul_peak(self._device)
            self._peak = again if flops <= again else 0.0  # 0: there is no telling
        return f"{flops / self._peak:.0%} of matmul peak  " if self._peak else ""


def _validated(values: dict[str, float]) -> str:
    said = {
        "bits_per_byte": "{:.4f} bits per byte",
        "perplexity": "perplexity {:.3f}",
        "bleu": "BLEU {:.2f}",
    }
    return ", ".join(form.format(values[name]) for name, form in said.items() if name in values)
