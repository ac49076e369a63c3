"""Watch memory pay off: train a small Transformer-XL on Python's own library, then read on with it.

    python examples/read_on.py [seconds]

All of it with four names of segue: XLConfig, TransformerXL, Reach and the sentence `hidden, memory = model(...)`.
"""

import lzma
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor

import segue

LANES, SEGMENT, MEMORY = 16, 64, 64
HELD_OUT = 60_000


def library() -> Tensor:
    """The bytes of the standard library, file after file in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.is_file())
    return torch.frombuffer(
        bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8
    ).long()


def train(model: segue.TransformerXL, text: Tensor, seconds: float) -> None:
    """Read the lanes side by side, each one stream; memory goes on from segment to segment."""
    lanes = text[: len(text) // LANES * LANES].view(LANES, -1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    reach = segue.Reach(memory=MEMORY)
    memory, at, begin, steps = model.start(lanes=LANES, reach=reach), 0, time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds:
        if at + SEGMENT + 1 > lanes.size(1):
            memory, at = model.start(lanes=LANES, reach=reach), 0
        hidden, memory = model(lanes[:, at : at + SEGMENT], memory)
        loss = model.nats(hidden, lanes[:, at + 1 : at + 1 + SEGMENT]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (0.02 + 0.98 * math.cos(math.pi / 2 * elapsed / seconds))
        optimizer.step()
        optimizer.zero_grad()
        at, steps = at + SEGMENT, steps + 1
        if steps % 100 == 0:
            bits, rate = loss.item() / math.log(2), steps * LANES * SEGMENT / elapsed
            print(
                f"  step {steps:5d}   {bits:.3f} bits per byte   {rate:,.0f} bytes/s   {seconds - elapsed:3.0f} s left"
            )


@torch.no_grad()
def bits_per_byte(model: segue.TransformerXL, text: Tensor, memory: int) -> float:
    """One stream, every byte but the first scored once."""
    state = model.projected(model.start(reach=segue.Reach(memory=memory)))
    total = 0.0
    for start in range(0, len(text) - 1, SEGMENT):
        targets = text[None, start + 1 : start + 1 + SEGMENT]
        hidden, state = model(text[None, start : start + targets.size(1)], state)
        total += model.nats(hidden, targets).sum().item()
    return total / math.log(2) / (len(text) - 1)


@torch.no_grad()
def go_on(model: segue.TransformerXL, prompt: bytes, length: int) -> bytes:
    """The prompt and what the model says next, a byte at a time."""
    tokens = torch.tensor(list(prompt))[None]
    hidden, memory = model(tokens, model.projected(model.start(reach=segue.Reach(memory=512))))
    said = list(prompt)
    for _ in range(length):
        chances = (model.logprobs(hidden[:, -1]) / 0.7).softmax(dim=-1)
        said.append(int(torch.multinomial(chances, 1)))
        hidden, memory = model(torch.tensor([[said[-1]]]), memory)
    return bytes(said)


def main(seconds: float = 75) -> None:
    torch.manual_seed(0)
    text = library()
    training, held_out = text[:-HELD_OUT], text[-HELD_OUT:]
    model = segue.TransformerXL(segue.XLConfig(vocab=256, width=128, layers=4, heads=4))
    count = sum(weight.numel() for weight in model.parameters())
    print(f"\nTraining {count:,} parameters on {len(training):,} bytes of Python, memory {MEMORY}:")
    train(model, training, seconds)
    model.eval()
    print(f"\nReading {HELD_OUT:,} bytes it has never seen:")
    for memory in (0, MEMORY, 4 * MEMORY, 16 * MEMORY):
        begin = time.monotonic()
        score = bits_per_byte(model, held_out, memory)
        rate = HELD_OUT / (time.monotonic() - begin)
        print(f"  memory {memory:5d}   {score:.3f} bits per byte   {rate:,.0f} bytes/s")
    packed = lzma.compress(bytes(held_out.tolist()), preset=9)
    print(f"  xz -9          {8 * len(packed) / HELD_OUT:.3f} bits per byte")
    print("\nWhere it would go on from here:\n")
    print(go_on(model, b"def read(self, size):\n", 320).decode(errors="replace"))


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(*map(float, sys.argv[1:2]))
