"""The README's example runs as written."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_the_first_minute_runs_as_written() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 1
    torch.manual_seed(0)
    names: dict[str, object] = {}
    with torch.no_grad():
        exec(blocks[0], names)  # noqa: S102
    nats, logprobs, memory = (names[name] for name in ("nats", "logprobs", "memory"))
    assert isinstance(nats, torch.Tensor)
    assert nats.shape == (4, 128)
    assert isinstance(logprobs, torch.Tensor)
    assert logprobs.shape == (4, 128, 256)
    assert memory.seen.tolist() == [256, 256, 51, 178]  # type: ignore[attr-defined]
