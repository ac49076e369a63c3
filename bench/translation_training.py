"""Training of an encoder-decoder beside torch's own `nn.Transformer`, on the same weights and the same batch.

    python bench/translation_training.py [--threads 2] [--rounds 7]

Needs segue alone. The shape is `transformer-base`'s, with the norm behind the last layer that `nn.Transformer` has; the
batch is 32 padded pairs; dropout, label smoothing and Adam are on both sides. A step is the loss, its gradients and
Adam's update. That both compute the same loss is checked without dropout. Both take turns; the ratio is that of the
medians. With --threads 1 the clock is the processor's, which other processes do not disturb.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from machine import as_json, environment, interleaved
from segue.config import Seq2SeqConfig
from segue.nn.positions import interleaved_sinusoids
from segue.nn.seq2seq import Seq2Seq
from segue.text.pair_batches import Batch, padded
from segue.text.special_tokens import IGNORED, special_tokens
from segue.training.objective import PairObjective

RESULTS = Path(__file__).parent / "results/translation_training.json"
PAIRS, SHORTEST, LONGEST, VOCAB = 32, 10, 30, 32_003
DROPOUT, SMOOTHING, LEARNING_RATE = 0.1, 0.1, 1e-4


class TorchTranslator(nn.Module):
    """`nn.Transformer` between an embedding and an output layer that are one table, as people write it."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.vocab, config.width)
        self.transformer = nn.Transformer(
            config.width,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.feedforward,
            dropout=config.dropout,
            batch_first=True,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("places", interleaved_sinusoids(torch.arange(100), config.width, torch.float32))

    def forward(self, batch: Batch) -> Tensor:
        """The mean label-smoothed cross-entropy of the batch's targets."""
        masked = torch.arange(batch.source.size(1)) >= batch.source_lengths[:, None]
        size = batch.decoder_input.size(1)
        hidden = self.transformer(
            self._embedded(batch.source),
            self._embedded(batch.decoder_input),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(size),
            src_key_padding_mask=masked,
            memory_key_padding_mask=masked,
            tgt_is_causal=True,
        )
        logits = F.linear(hidden, self.table.weight).flatten(0, 1)
        everywhere = (
            SMOOTHING * len(self.table.weight) / (len(self.table.weight) - 1)
        )  # the right token included
        return F.cross_entropy(
            logits, batch.targets.flatten(), ignore_index=IGNORED, label_smoothing=everywhere
        )

    def _embedded(self, tokens: Tensor) -> Tensor:
        vectors = self.table(tokens) * self.table.embedding_dim**0.5
        placed: Tensor = self.dropout(vectors + self.places[: tokens.size(1)])
        return placed


@torch.no_grad()
def copied(ours: Seq2Seq) -> TorchTranslator:
    """Torch's own with our weights."""
    theirs = TorchTranslator(ours.config)
    theirs.table.weight.copy_(ours.vocabulary.tables[0])
    for side in ("encoder", "decoder"):
        stack = getattr(theirs.transformer, side)
        stack.norm.load_state_dict(getattr(ours, f"{side}_norm").state_dict())
        for block, layer in zip(getattr(ours, side), stack.layers, strict=True):
            pairs = [(block.attention, layer.self_attn)]
            norms = [block.attention_norm, block.feed_forward_norm]
            if side == "decoder":
                pairs.append((block.cross, layer.multihead_attn))
                norms.insert(1, block.cross_norm)
            for attention, other in pairs:
                other.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.key_value.weight]))
                other.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key_value.bias]))
                other.out_proj.load_state_dict(attention.out.state_dict())
            for number, norm in enumerate(norms, 1):
                getattr(layer, f"norm{number}").load_state_dict(norm.state_dict())
            layer.linear1.load_state_dict(block.feed_forward.inner.state_dict())
            layer.linear2.load_state_dict(block.feed_forward.outer.state_dict())
    return theirs


def some_pairs() -> Batch:
    """Pairs of random words, as `segue train` would make a batch of them."""
    draw = random.Random(0)  # noqa: S311
    start, end = special_tokens(VOCAB)
    sources, targets = (
        [[draw.randrange(start) for _ in range(draw.randint(SHORTEST, LONGEST))] for _ in range(PAIRS)]
        for _ in range(2)
    )
    source, source_lengths = padded([[*row, end] for row in sources], end)
    decoder_input, target_lengths = padded([[start, *row] for row in targets], end)
    wanted, _ = padded([[*row, end] for row in targets], IGNORED)
    return Batch(np.arange(PAIRS), source, source_lengths, decoder_input, target_lengths, wanted)


def our_loss(objective: PairObjective, batch: Batch) -> Tensor:
    loss: Tensor = objective(batch).nats.sum() / batch.target_lengths.sum()
    return loss


def step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def work() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    config = Seq2SeqConfig(vocab=VOCAB, width=512, heads=8, dropout=DROPOUT, final_norm=True)
    ours, batch = Seq2Seq(config), some_pairs()
    theirs, objective = copied(ours), PairObjective(ours, SMOOTHING)
    losses = [float(one.detach()) for one in (our_loss(objective.eval(), batch), theirs.eval()(batch))]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=0)
    works = {
        "segue": step(ours, lambda: our_loss(objective.train(), batch)),
        "torch": step(theirs, lambda: theirs.train()(batch)),
    }
    clock = time.process_time if asked.threads == 1 else time.perf_counter
    times = interleaved(works, 2 if asked.quick else asked.rounds, clock)
    tokens = int(batch.source_lengths.sum() + batch.target_lengths.sum())
    ratio = times["segue"].over(times["torch"])
    print(
        f"training: segue {times['segue'].median:.2f} s, torch {times['torch'].median:.2f} s for {PAIRS} pairs "
        f"({tokens} tokens), ratio {ratio:.2f}; losses {losses[0]:.4f} and {losses[1]:.4f}"
    )
    about = {**environment(), "threads": asked.threads}
    row = {"seconds": as_json(times), "ratio": round(ratio, 3), "losses": losses}
    asked.json.write_text(json.dumps({"environment": about, "tokens": tokens, **row}, indent=1) + "\n")


if __name__ == "__main__":
    main()
