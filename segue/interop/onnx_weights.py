"""Weights of ONNX files, under the names that they had in PyTorch. Needs the extra `onnx`.

An exporter keeps the names of biases, norms and tables, but folds a linear layer's transposition into its weight, which
so loses its name (`onnx::MatMul_714`). The graph tells whose it is: it is multiplied where that bias is added next.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from segue.errors import SourceError

OLDEST = 9
"""The first opset with Erf, of which GELU is made; older graphs also add biases by other rules."""


class Node(NamedTuple):
    """An operation of a graph, with the names of its inputs and outputs."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_onnx(path: Path) -> dict[str, Tensor]:
    """The weights of an ONNX file by their PyTorch names. Nothing of it is run."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise SourceError(f"reading {path} needs the onnx package: pip install 'segue-lm[onnx]'") from None
    try:
        model = onnx.load(str(path))
        graph = model.graph
        weights = {one.name: torch.from_numpy(numpy_helper.to_array(one).copy()) for one in graph.initializer}
    except Exception as error:  # a damaged file can raise nearly any exception
        raise SourceError(f"{path} is no ONNX file that can be read: {error}") from None
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=1)
    if opset < OLDEST:
        raise SourceError(f"{path} has opset {opset}; {OLDEST} or newer is wanted: export the model again")
    nodes = [Node(node.op_type, tuple(node.input), tuple(node.output)) for node in graph.node]
    if any(node.kind.endswith("Integer") or node.kind.startswith("DynamicQuantize") for node in nodes):
        raise SourceError(f"{path} is quantized; import the file with float32 weights")
    return with_names(weights, nodes)


def with_names(weights: Mapping[str, Tensor], nodes: Sequence[Node]) -> dict[str, Tensor]:
    """The same weights; a matrix without a name of its own gets that of the bias that is added to its product."""
    products = {output: node for node in nodes if node.kind == "MatMul" for output in node.outputs}
    named = {name: weight for name, weight in weights.items() if name.endswith((".weight", ".bias"))}
    for node in nodes:
        bias = next((name for name in node.inputs if name.endswith(".bias") and name in weights), None)
        if node.kind != "Add" or bias is None:
            continue
        product = next((products[name] for name in node.inputs if name in products), None)
        factor = None if product is None else next((name for name in product.inputs if name in weights), None)
        if factor is not None and weights[factor].dim() == 2:
            matrix = f"{bias.removesuffix('.bias')}.weight"
            named.setdefault(matrix, weights[factor].T.contiguous())  # ONNX multiplies from the right
    return named
