"""The log of a run: one line of JSON for every event, and TensorBoard files if the extra `track` is installed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from segue.errors import TrainingError
from segue.files import write_atomically
from segue.training.loop import Event


class Log:
    """An open log. On opening, the lines of later steps are removed: those steps are repeated."""

    def __init__(self, run: Path, step: int) -> None:
        self._path = run / "log.jsonl"
        lines = (
            self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            if self._path.exists()
            else []
        )
        earlier = [line for line in lines if _step(line) <= step]
        if len(earlier) < len(lines):
            write_atomically(self._path, "".join(f"{line}\n" for line in earlier), TrainingError)
        with self._reporting_errors():
            self._file = self._path.open("a", encoding="utf-8")
        self._board = _board(run)

    def write(self, event: Event) -> None:
        line = {"kind": event.kind, "step": event.step, **event.values}
        with self._reporting_errors():
            self._file.write(json.dumps(line) + "\n")
            if event.kind != "step":
                self._file.flush()
        for name, value in event.values.items() if self._board else ():
            if isinstance(value, float):
                self._board.add_scalar(f"{event.kind}/{name}", value, event.step)

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"{self._path} could not be written: {error.strerror}; the checkpoints are complete: "
                f"free disk space and go on with --resume {self._path.parent}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board:
            self._board.close()
        if error is not None:
            with suppress(OSError):  # the first error is the one to report
                self._file.close()
            return
        with self._reporting_errors():
            self._file.close()


def _step(line: str) -> int:
    """The step of a line; very large if the line is incomplete, so that it is removed."""
    try:
        return int(json.loads(line)["step"])
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
    ):  # an incomplete line of a killed run
        return 2**63


def _board(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # the extra `track` is not installed
        return None
    return SummaryWriter(str(run / "tensorboard"))  # type: ignore[no-untyped-call,unused-ignore]
