"""Rounds the weights of an ONNX graph to 8-bit integers with a scale for each row. Needs the extra `onnx`.

Products with a weight become MatMulInteger, whose inputs are rounded as they come (DynamicQuantizeLinear); of a table
of embeddings, single rows are looked up and scaled back. So files have a quarter of the bytes, and no library but
`onnx` is needed to write them.
"""

from typing import Any

import numpy as np

SMALLEST = 1024
"""Weights of fewer numbers stay as they are: biases, norms, narrow tables."""

STEPS = 64
"""Weights are rounded to -64 … 64. Processors without VNNI add two products in 16 bits: 2 · 255 · 64 < 2¹⁵."""


def rounded(model: Any) -> Any:
    """The same graph with int8 weights."""
    return _Rounding(model).model


class _Rounding:
    """Rewrites one graph in place."""

    def __init__(self, model: Any) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.arrays = helper, numpy_helper
        self.model, self.graph = model, model.graph
        self.weights = {one.name: one for one in self.graph.initializer}
        self.turned = {
            node.output[0]: node.input[0] for node in self.graph.node if node.op_type == "Transpose"
        }
        self.known: dict[tuple[str, int], tuple[str, str]] = {}
        nodes = [new for node in self.graph.node for new in self._rewritten(node)]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        self._drop_unused()

    def _rewritten(self, node: Any) -> list[Any]:
        if node.op_type == "Gather" and self._is_table(node.input[0]):
            return self._looked_up(node)
        if node.op_type in ("MatMul", "Gemm"):
            turned = self.turned.get(node.input[1])
            transposed = node.op_type == "Gemm" and self._attribute(node, "transB") == 1
            weight = turned if turned is not None and self._is_table(turned) else node.input[1]
            if self._is_table(weight):
                return self._product(node, weight, by_row=transposed or weight == turned)
        return [node]

    def _is_table(self, name: str) -> bool:
        weight = self.weights.get(name)
        return (
            weight is not None
            and weight.data_type == 1
            and len(weight.dims) == 2
            and int(np.prod(weight.dims)) >= SMALLEST
        )

    @staticmethod
    def _attribute(node: Any, name: str) -> Any:
        return next((one.i for one in node.attribute if one.name == name), 0)

    def _integers(self, name: str, axis: int) -> tuple[str, str]:
        """The names of a weight's integers and of their scales, one for each entry of the axis."""
        if (name, axis) not in self.known:
            weight = self.arrays.to_array(self.weights[name])
            largest = np.abs(weight).max(axis=1 - axis, keepdims=True)
            scale = np.where(largest == 0, 1, largest / STEPS).astype(np.float32)
            integers = np.rint(weight / scale).astype(np.int8)
            names = f"{name}.int8.{axis}", f"{name}.scale.{axis}"
            for one, array in zip(names, (integers, scale.squeeze(1 - axis)), strict=True):
                self.graph.initializer.append(self.arrays.from_array(np.asarray(array), one))
            self.known[name, axis] = names
        return self.known[name, axis]

    def _looked_up(self, node: Any) -> list[Any]:
        """Rows of a table: looked up as integers, times their scale."""
        integers, scale = self._integers(node.input[0], 0)
        make, out, ids = self.helper.make_node, node.output[0], node.input[1]
        last = f"{out}.last"
        self.graph.initializer.append(self.arrays.from_array(np.array([-1], dtype=np.int64), last))
        return [
            make("Gather", [integers, ids], [f"{out}.integers"]),
            make("Cast", [f"{out}.integers"], [f"{out}.floats"], to=1),
            make("Gather", [scale, ids], [f"{out}.scales"]),
            make("Unsqueeze", [f"{out}.scales", last], [f"{out}.column"]),
            make("Mul", [f"{out}.floats", f"{out}.column"], [out]),
        ]

    def _product(self, node: Any, weight: str, *, by_row: bool) -> list[Any]:
        """The product of inputs with a weight (C, V), or (V, C) if `by_row`; the scales are those of V."""
        integers, scale = self._integers(weight, 0 if by_row else 1)
        make, out, inputs = self.helper.make_node, node.output[0], node.input[0]
        parts = [f"{out}.inputs", f"{out}.step", f"{out}.zero"]
        nodes = [make("DynamicQuantizeLinear", [inputs], parts)]
        if by_row:
            nodes.append(make("Transpose", [integers], [f"{out}.turned"], perm=[1, 0]))
            integers = f"{out}.turned"
        bias = node.op_type == "Gemm" and len(node.input) > 2
        whole = f"{out}.product" if bias else out
        nodes += [
            make("MatMulInteger", [parts[0], integers, parts[2]], [f"{out}.sums"]),
            make("Cast", [f"{out}.sums"], [f"{out}.floats"], to=1),
            make("Mul", [parts[1], scale], [f"{out}.scales"]),
            make("Mul", [f"{out}.floats", f"{out}.scales"], [whole]),
        ]
        return [*nodes, make("Add", [whole, node.input[2]], [out])] if bias else nodes

    def _drop_unused(self) -> None:
        """Leave out what nobody reads any more: weights that were rounded, and their transpositions."""
        outputs = {one.name for one in self.graph.output}
        while True:
            used = outputs | {name for node in self.graph.node for name in node.input}
            kept = [node for node in self.graph.node if used & set(node.output)]
            if len(kept) == len(self.graph.node):
                break
            del self.graph.node[:]
            self.graph.node.extend(kept)
        weights = [one for one in self.graph.initializer if one.name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(weights)
