"""Records what the stock MarianMTModel computes, at small random sizes: `python tests/interop/record_marian.py`.

Needs torch and transformers (recorded with 5.22.2); the tests read what it wrote, in `recorded`, without them.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import MarianConfig, MarianMTModel

FOLDER = Path(__file__).parent / "recorded"
VOCAB = 17
CASES = {
    "marian-swish": {"activation_function": "swish", "scale_embedding": True},
    "marian-relu-unscaled": {"activation_function": "relu", "scale_embedding": False},
    "marian-two-vocabularies": {
        "activation_function": "swish",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": VOCAB,
    },
}


def main() -> None:
    for name, changes in CASES.items():
        torch.manual_seed(7)
        config = MarianConfig(
            vocab_size=VOCAB,
            d_model=8,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=12,
            decoder_ffn_dim=12,
            max_position_embeddings=24,
            pad_token_id=VOCAB - 1,
            eos_token_id=0,
            decoder_start_token_id=VOCAB - 1,
            init_std=0.4,
            **changes,
        )
        model = MarianMTModel(config).eval()
        with torch.no_grad():
            model.final_logits_bias.copy_(torch.randn(1, VOCAB))
        source = torch.tensor([[3, 5, 2, 9, 0], [4, 8, 0, VOCAB - 1, VOCAB - 1]])
        target = torch.tensor([[VOCAB - 1, 6, 7, 2], [VOCAB - 1, 5, 5, 1]])
        with torch.no_grad():
            logits = model(
                input_ids=source, attention_mask=(source != VOCAB - 1).long(), decoder_input_ids=target
            ).logits
        folder = FOLDER / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        tensors = {"source": source, "target": target, "logprobs": logits.log_softmax(-1)}
        save_file(tensors, folder / "outputs.safetensors")
        ids = {"</s>": 0, "<unk>": 1, **{f"\u2581w{n}": n for n in range(2, VOCAB - 1)}, "<pad>": VOCAB - 1}
        (folder / "vocab.json").write_text(json.dumps(ids))


if __name__ == "__main__":
    main()
