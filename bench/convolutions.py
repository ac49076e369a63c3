"""Training steps of QRNN, GCNN and TCN beside torch's own layers of the same width, in turns on one machine.

    python bench/convolutions.py [--quick]      # part of `make bench`

Ours read on with memory and end in the same cross-entropy; torch's are an `nn.LSTM`, or a stack of `nn.Conv1d` with the
same gates. A ratio is torch's median time over ours.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from machine import THREADS, as_json, environment, interleaved
from segue.config import ConvolutionalConfig, Reach
from segue.nn.convolutional import ConvolutionalModel

VOCAB, LANES, LENGTH = 256, 16, 128
WIDTHS = (256, 512)


class Stack(nn.Module):
    """Torch's layers between a tied embedding and output."""

    def __init__(
        self, width: int, layers: nn.ModuleList, read: Callable[[nn.Module, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.table, self.layers, self.read = nn.Embedding(VOCAB, width), layers, read

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = self.read(layer, hidden)
        return F.cross_entropy((hidden @ self.table.weight.T).flatten(0, 1), tokens.flatten())


def gated(layer: nn.Module, hidden: Tensor) -> Tensor:
    padded = F.pad(hidden.transpose(1, 2), (layer.kernel_size[0] - 1, 0))
    return hidden + F.glu(layer(padded), dim=1).transpose(1, 2)


def level(layer: nn.Module, hidden: Tensor) -> Tensor:
    passed = hidden.transpose(1, 2)
    for part in layer:
        passed = part(F.pad(passed, ((part.kernel_size[0] - 1) * part.dilation[0], 0))).relu()
    return (hidden + passed.transpose(1, 2)).relu()


def convolution(inputs: int, outputs: int, kernel: int, dilation: int) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Conv1d(inputs, outputs, kernel, dilation=dilation))


def rows(width: int) -> dict[str, tuple[ConvolutionalConfig, nn.Module]]:
    """Ours, and torch's of the same shape."""
    tcn = [(width, 3, 2**number) for number in range(4)]
    levels = ([convolution(width, width, 3, d), convolution(width, width, 3, d)] for _, _, d in tcn)
    shape = {"vocab": VOCAB, "width": width}
    return {
        "QRNN, 2 layers, beside nn.LSTM": (
            ConvolutionalConfig(**shape, gate="qrnn", layers=[(width, 2)] * 2),
            Stack(
                width, nn.ModuleList([nn.LSTM(width, width, 2, batch_first=True)]), lambda lstm, x: lstm(x)[0]
            ),
        ),
        "GCNN, 4 layers, k 4, beside nn.Conv1d": (
            ConvolutionalConfig(**shape, layers=[(width, 4)] * 4),
            Stack(width, nn.ModuleList(convolution(width, 2 * width, 4, 1) for _ in range(4)), gated),
        ),
        "TCN, 4 levels, k 3, beside nn.Conv1d": (
            ConvolutionalConfig(**shape, gate="tcn", layers=tcn),
            Stack(width, nn.ModuleList(map(nn.ModuleList, levels)), level),
        ),
    }


def measure(config: ConvolutionalConfig, theirs: nn.Module, repeats: int) -> dict[str, dict[str, float]]:
    model = ConvolutionalModel(config).train()
    tokens = torch.randint(0, VOCAB, (LANES, LENGTH))
    _, memory = model(tokens, model.start(lanes=LANES, reach=Reach(memory=1)))

    def ours() -> None:
        hidden, _ = model(tokens, memory)
        model.nats(hidden, tokens).mean().backward()
        model.zero_grad()

    def torchs() -> None:
        theirs(tokens).backward()
        theirs.zero_grad()

    return as_json(interleaved({"torch": torchs, "segue": ours}, repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "convolutions.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    results = {}
    for width in WIDTHS[:1] if options.quick else WIDTHS:
        for name, (config, theirs) in rows(width).items():
            setting = f"{name}, width {width}, T {LENGTH}, B {LANES}"
            results[setting] = measure(config, theirs, 5 if options.quick else 11)
            times = {who: 1000 * time["median"] for who, time in results[setting].items()}
            ratio = times["torch"] / times["segue"]
            print(
                f"{setting:<70} torch {times['torch']:.1f} ms, segue {times['segue']:.1f} ms: {ratio:.2f}",
                flush=True,
            )
    options.out.write_text(json.dumps({"environment": environment(), "rows": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
