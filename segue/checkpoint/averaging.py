"""Checkpoint averaging: one model with the mean of the weights of several checkpoints."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from segue.checkpoint.bundles import Bundle, Translator, load, load_translator, task_of
from segue.checkpoint.encoders import TextEncoder, load_encoder_bundle
from segue.checkpoint.files import WEIGHTS, read_tensors, verify
from segue.checkpoint.runs import listed, newest_checkpoints
from segue.errors import BundleError, SegueError


def average(run: Path, last: int) -> Bundle | Translator | TextEncoder:
    """Checkpoint averaging: the newest checkpoint with the mean of the weights of the `last` newest ones."""
    while True:
        folders = newest_checkpoints(run)[-last:]
        if len(folders) < last:
            raise BundleError(
                f"{run} keeps {len(folders)} of its newest checkpoints and {last} were asked for; "
                f"train with train.keep={last} or more"
            )
        try:
            return _mean(folders)
        except SegueError:
            if all(listed(folder) for folder in folders):  # else the run is training and has removed one
                raise


def _mean(folders: Sequence[Path]) -> Bundle | Translator | TextEncoder:
    load_any: dict[str, Callable[[Path], Bundle | Translator | TextEncoder]] = {
        "language": load,
        "translation": load_translator,
        "encoding": load_encoder_bundle,
    }
    newest = load_any[task_of(folders[-1])](folders[-1])
    mean: dict[str, Tensor] = {}
    for folder in folders:
        verify(folder)
        for name, weight in read_tensors(folder / WEIGHTS).items():
            share = weight.double() / len(folders)  # in float64, so that the order does not matter
            mean[name] = mean[name] + share if name in mean else share
    dtypes = {name: weight.dtype for name, weight in newest.model.state_dict().items()}
    newest.model.load_state_dict({name: weight.to(dtypes[name]) for name, weight in mean.items()})
    return newest
