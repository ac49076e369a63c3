"""Traces a module to an ONNX graph with sizes that every call may choose. Needs the extra `onnx`.

torch's exporter of traced graphs is used (`dynamo=False`): the newer one fixes sizes that are 0 or 1.
"""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from segue.errors import SourceError

OPSET = 17
"""The first with LayerNormalization; onnxruntime reads it since 1.12."""

LARGEST = 2**31 - 2**20
"""Bytes of weights: a file of protocol buffers ends at 2 GiB."""

Dynamic = Mapping[str, Mapping[int, str]]
"""For each input and output, the names of the axes whose sizes are free."""


def traced(module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], free: Dynamic) -> Any:
    """The graph of a module, an `onnx.ModelProto`. Sizes in `inputs` should differ, and be neither 0 nor 1."""
    onnx = import_onnx()
    size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    if size > LARGEST:
        raise SourceError(f"{size / 2**30:.1f} GiB of weights do not fit into an ONNX file, which ends at 2")
    content = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings(), _free_sizes():
        warnings.simplefilter("ignore")  # that sizes may become constants: the tests hold that they do not
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            content,  # type: ignore[arg-type]  # a file in memory: this route takes it
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes={name: dict(axes) for name, axes in free.items()},
        )
    model = onnx.load_model_from_string(content.getvalue())
    model.producer_name, model.doc_string = "segue", ""
    _share_transposed(model.graph, onnx)
    return model


def _share_transposed(graph: Any, onnx: Any) -> None:
    """Write a tied table once: the output's is the embedding's, transposed, and would be a weight of its own."""
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer if len(one.dims) == 2}
    named = {
        (array.shape, array.tobytes()): name
        for name, array in arrays.items()
        if not name.startswith("onnx::")
    }
    for name in arrays.keys() - set(named.values()):
        table = named.get((arrays[name].shape[::-1], arrays[name].T.tobytes()))
        if table is not None:
            graph.node.insert(0, onnx.helper.make_node("Transpose", [table], [name], perm=[1, 0]))
            graph.initializer.remove(next(one for one in graph.initializer if one.name == name))


@contextmanager
def _free_sizes() -> Iterator[None]:
    """Export `unflatten` as a plain Reshape; torch's own way to do so takes the sizes of the example for constants."""
    torch.onnx.register_custom_op_symbolic(  # type: ignore[attr-defined]
        "aten::unflatten", _unflattened, OPSET
    )
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic(  # type: ignore[attr-defined]
            "aten::unflatten", OPSET
        )


def _unflattened(graph: Any, tensor: Any, dim: Any, sizes: Any) -> Any:
    """A Reshape to (0, …, sizes, …): zeros stand for the sizes as they are."""
    rank, at = tensor.type().dim(), dim.node().t("value").item()
    assert at in (-1, rank - 1), "only the last axis is split here"
    kept = graph.op("Constant", value_t=torch.zeros(rank - 1, dtype=torch.int64))
    return graph.op("Reshape", tensor, graph.op("Concat", kept, sizes, axis_i=0))


def import_onnx() -> Any:
    try:
        import onnx
    except ImportError:
        raise SourceError("writing ONNX needs the onnx package: pip install 'segue-lm[onnx]'") from None
    return onnx
