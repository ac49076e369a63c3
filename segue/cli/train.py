"""`segue train`: train a model on a corpus; runs can be interrupted and resumed."""

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from segue.cli.encoder_recipe import fitted_to_encoder, fitted_to_examples, learns_examples
from segue.cli.eval_examples import FORMS
from segue.cli.machine import Threads, matmul_peak, use
from segue.cli.progress import Progress, duration
from segue.cli.terminal import echo, tell
from segue.errors import ConfigError

if TYPE_CHECKING:
    from segue.checkpoint import Bundle, TextEncoder, Translator
    from segue.interop.vectors import Vectors
    from segue.kinds import TaskKind
    from segue.recipe import AnyRecipe
    from segue.training.loop import Event

EXAMPLE = "Example: segue train stdlib-demo --data data/stdlib -o runs/demo --set train.steps=500"


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET|RECIPE.TOML]", help="The recipe: a preset (see `segue info`) or a TOML file."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of `segue prepare`, `prepare-pairs`, `prepare-examples`."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="The run's folder to write.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of the recipe; may be repeated."),
    ] = None,
    begin_with: Annotated[
        Path | None, typer.Option("--from", metavar="BUNDLE", help="Fine-tune the weights of a bundle.")
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Word2Vec or GloVe vectors to initialize the embedding; --set train.frozen=true keeps them fixed.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume a run, or extend a finished one.")
    ] = None,
    extend: Annotated[
        Literal["hold", "rewarm", "stretch"] | None,
        typer.Option(
            help="The learning rate when a run resumes with more train.steps than planned: hold the last rate, rewarm "
            "(run the schedule once more), or stretch the schedule over all steps (the rate jumps).",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of weights and dropout; the same as --set train.seed.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device: cpu, cuda, …; by default cpu, or the resumed run's.")
    ] = None,
    threads: Threads = 0,
) -> None:
    """Train a model, or resume a run.

    Ctrl-C saves a checkpoint and exits; --resume continues as if there had been no interruption, with the same number
    of threads to the last bit. To extend a finished run: --resume RUN --set train.steps=…; if its learning rate has
    decayed, --extend says how the schedule continues. With train.schedule=constant and train.cooldown=N, the learning
    rate falls only in the last N steps: extending starts before them, as if the longer run had been planned.
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
        echo(f"stopped at step {watch.step}; to continue: segue train --resume {folder}")
        raise typer.Exit(1)
    echo(f"{folder}: {watch.step:,} steps in {duration(watch.seconds)}. Next: segue eval {folder}")


def _vectors(path: Path | None) -> "Vectors | None":
    from segue.interop.vectors import read_vectors

    return None if path is None else read_vectors(path)


def _recipe(
    name: str | None, changes: list[str], data: Path | None, begin_with: Path | None
) -> "tuple[AnyRecipe, Bundle | Translator | TextEncoder | None]":
    """The recipe with its changes, and the bundle to fine-tune.

    A vocabulary size that the recipe leaves open is taken from the data; the model's shape from the bundle.
    """
    from segue.checkpoint import TextEncoder
    from segue.kinds import kind_of
    from segue.presets import preset
    from segue.recipe import read_recipe, recipe_of, with_changes

    if name is None or data is None:
        raise ConfigError("a recipe and data are needed: segue train PRESET --data DIR, or --resume RUN")
    values = (
        read_recipe(Path(name)) if name.endswith(".toml") else preset(name).recipe.model_dump(mode="json")
    )
    task = kind_of(values).task
    bundle = None if begin_with is None else _load(task, begin_with)
    preset_fits = not name.endswith(".toml")  # a preset fits any pairs, texts and examples
    if isinstance(bundle, TextEncoder):
        values = fitted_to_encoder(values, bundle)
    elif bundle is not None:
        values = {**values, "model": bundle.model.config.model_dump(mode="json")}
    if task == "encoding" and preset_fits and learns_examples(values):
        values = fitted_to_examples(values, data, from_nothing=bundle is None)
    elif task != "language" and preset_fits and bundle is None:
        values["model"] |= _vocabulary(task, data)
    values = with_changes(values, changes)
    if isinstance(values.setdefault("model", {}), dict) and "vocab" not in values["model"]:
        values["model"]["vocab"] = _vocabulary(task, data)["vocab"]
    return recipe_of(values), bundle


def _load(task: "TaskKind", path: Path) -> "Bundle | Translator | TextEncoder":
    """The model to fine-tune: an encoder may come from another library."""
    from segue.checkpoint import load, load_translator
    from segue.interop.encoders import load_encoder

    loaders: dict[TaskKind, Callable[[Path], Bundle | Translator | TextEncoder]]
    loaders = {"language": load, "translation": load_translator, "encoding": load_encoder}
    return loaders[task](path)


def _vocabulary(task: "TaskKind", data: Path) -> dict[str, int]:
    """The settings of a model that depend on its data."""
    from segue.text.corpus import open_corpus
    from segue.text.pairs import open_pairs

    if task == "translation":
        header = open_pairs(data).header
        return {"vocab": header.vocab, "source_vocab": header.source_vocab}
    return {"vocab": open_corpus(data).header.vocab}


def _stop_on_signals() -> Callable[[], bool]:
    """On Ctrl-C or SIGTERM: finish the step, save, exit. A second Ctrl-C exits at once."""
    stopped = False

    def stop(number: int, frame: object) -> None:  # noqa: ARG001
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return lambda: stopped


class _Watch:
    """Draws the progress line of training from its events."""

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
        """The share of the matmul peak; the peak is measured again if exceeded: the machine may have been busy then."""
        if self._peak and flops > self._peak:
            again = matmul_peak(self._device)
            self._peak = again if flops <= again else 0.0  # 0: unknown
        return f"{flops / self._peak:.0%} of matmul peak  " if self._peak else ""


def _validated(values: dict[str, float]) -> str:
    forms = {
        "bits_per_byte": "{:.4f} bits per byte",
        "perplexity": "perplexity {:.3f}",
        **{name: form for name, form in FORMS.items() if name != "accuracy"},
        "accuracy": "accuracy {:.2%}",
        "next_sentence_accuracy": "of next sentences {:.2%}",
        "bleu": "BLEU {:.2f}",
        "mean_steps": "{:.2f} steps per token",
        "source_steps": "{:.2f} steps per token of the source",
        "target_steps": "{:.2f} of the target",
    }
    return ", ".join(form.format(values[name]) for name, form in forms.items() if name in values)
