"""What a run writes down: a line of JSON for every event, and TensorBoard's files where its extra is installed."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from segue.training.loop import Event


class Log:
    """Opened at a step: what an earlier sitting wrote beyond it did not last, and is removed."""

    def __init__(self, run: Path, step: int) -> None:
        path = run / "log.jsonl"
        kept = []
        if path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) <= step]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        self._board = _board(run)

    def write(self, event: Event) -> None:
        line = {"kind": event.kind, "step": event.step, **event.values}
        self._file.write(json.dumps(line) + "\n")
        if event.kind != "step":
            self._file.flush()
        for name, value in event.values.items() if self._board else ():
            if isinstance(value, float):
                self._board.add_scalar(f"{event.kind}/{name}", value, event.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._board:
            self._board.close()


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):  # the last line of a run that was killed while writing it
        return 2**63


def _board(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # the extra `track` is not installed
        return None
    return SummaryWriter(str(run / "tensorboard"))  # type: ignore[no-untyped-call,unused-ignore]
