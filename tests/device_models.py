"""Every kind of model in every form that computes differently, as small as it gets. For `on_a_device.py`."""

from typing import Any

from segue.kinds import KINDS
from support import ENCODINGS, TABLES

SMALL: dict[str, Any] = {"vocab": 13, "width": 8}
LAYERS: dict[str, Any] = {**SMALL, "heads": 2, "feedforward": 12}
ADAPTIVE: dict[str, Any] = {"cutoffs": (4, 9), "tied_projections": False}
STRIDED: dict[str, Any] = {"pattern": "strided", "stride": 3}
FIXED: dict[str, Any] = {"pattern": "fixed", "stride": 4, "summary": 2}

LANGUAGE: dict[str, dict[str, Any]] = {
    **{f"xl {name}": {"encoding": name, "layers": 2, **LAYERS, **TABLES.get(name, {})} for name in ENCODINGS},
    "xl pre-norm, attention dropout": {
        **LAYERS,
        "layers": 2,
        "norm": "pre",
        "attention_dropout": 0.5,
        "dropout": 0.5,
    },
    "xl adaptive": {**LAYERS, "layers": 2, **ADAPTIVE},
    "xl adaptive, narrow tails": {**LAYERS, "layers": 2, **ADAPTIVE, "divisor": 2},
    "xl strided": {**LAYERS, "layers": 2, **STRIDED},
    "xl strided by layers": {**LAYERS, "layers": 2, **STRIDED, "combine": "layers"},
    "xl strided by heads": {**LAYERS, "layers": 2, **STRIDED, "combine": "heads"},
    "xl fixed": {**LAYERS, "layers": 2, **FIXED},
    "xl fixed by heads": {**LAYERS, "layers": 2, **FIXED, "combine": "heads"},
    **{f"recurrent {cell}": {"kind": "recurrent", **SMALL, "cell": cell} for cell in ("rnn", "gru", "lstm")},
    "kernel elu": {"kind": "kernel", **LAYERS, "layers": 1},
    "kernel performer": {
        "kind": "kernel",
        **LAYERS,
        "layers": 2,
        "features": "performer",
        "random_features": 6,
    },
    **{
        f"universal {name}": {"kind": "universal", **LAYERS, "steps": 2, "halting": name}
        for name in ("none", "act", "listing")
    },
    **{
        f"convolutional {gate}": {
            "kind": "convolutional",
            **SMALL,
            "gate": gate,
            "layers": ((8, 3), (8, 2, 2)),
        }
        for gate in ("glu", "tcn", "qrnn")
    },
}
"""By name."""

BOTH_SIDES: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"window": 4},
    "window, global": {"window": 4, "global_tokens": 1},
    "nystrom": {"attention": "nystrom", "rank": 3},
    **{
        f"linformer {share}": {"attention": "linformer", "rank": 3, "share": share}
        for share in ("none", "heads", "key-value", "layers")
    },
}
"""The self-attention of an encoder."""

TWO_SIDED: dict[str, Any] = {**LAYERS, "encoder_layers": 2, "decoder_layers": 2}
TRANSLATION: dict[str, dict[str, Any]] = {
    **{
        f"seq2seq {name}": {
            "kind": "seq2seq",
            **TWO_SIDED,
            **form,
            **({"max_source": 9} if "linformer" in name else {}),
        }
        for name, form in BOTH_SIDES.items()
        if form.get("share", "layers") == "layers"  # the others differ in the encoder alone
    },
    "seq2seq xl": {"kind": "seq2seq", **TWO_SIDED, "encoding": "xl", "source_vocab": 11, "decoder_span": 3},
    **{
        f"recurrent-seq2seq {cell}": {"kind": "recurrent-seq2seq", **SMALL, "cell": cell}
        for cell in ("rnn", "gru", "lstm")
    },
    "recurrent-seq2seq without attention": {"kind": "recurrent-seq2seq", **SMALL, "attention": False},
    **{
        f"universal-seq2seq {name}": {"kind": "universal-seq2seq", **LAYERS, "steps": 2, "halting": name}
        for name in ("none", "act", "listing")
    },
}

ENCODERS: dict[str, dict[str, Any]] = {
    **{
        f"encoder {name}": {"kind": "encoder", **LAYERS, "layers": 2, "max_positions": 9, **form}
        for name, form in BOTH_SIDES.items()
    },
    "encoder shared, narrow": {
        "kind": "encoder",
        **LAYERS,
        "layers": 2,
        "max_positions": 9,
        "shared_layers": True,
        "embedding": 4,
    },
    **{
        f"universal-encoder {name}": {"kind": "universal-encoder", **LAYERS, "steps": 2, "halting": name}
        for name in ("none", "act", "listing")
    },
}


def config_of(form: dict[str, Any]) -> Any:
    """The config that these settings describe."""
    return KINDS[form.get("kind", "xl")].config(**form)
