"""Whether a model is being traced to a graph of other code.

Such a graph has plain products and softmax alone, and its sizes are chosen when it runs. So what is fast here by its
own kernels, or by looking at its data first, is then computed as the papers print it.
"""

import torch


def tracing() -> bool:
    """Whether a trace is being taken."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined,no-any-return]
