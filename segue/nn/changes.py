"""Notices when weights change under an engine that has prepared tables of them.

Every change in place raises a tensor's version, but the fused steps of torch's optimizers do not; so optimizers are
watched too. What is written through `.data` or numpy is noticed by nobody.
"""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

WATCHES: "weakref.WeakSet[Watch]" = weakref.WeakSet()
HOOKS: list[Any] = []


class Watch:
    """Remembers the present state of some weights."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = tuple(weights)
        self._begin()

    def _begin(self) -> None:
        self._ids = {id(weight) for weight in self._weights}
        self._stepped, self._mark = False, self._now()
        WATCHES.add(self)
        if not HOOKS:
            HOOKS.append(register_optimizer_step_post_hook(_note_step))

    @property
    def changed(self) -> bool:
        """Whether an optimizer, or anybody else, has written to the weights since."""
        return self._stepped or self._now() != self._mark

    def note(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step."""
        groups = optimizer.param_groups
        if any(id(weight) in self._ids for group in groups for weight in group["params"]):
            self._stepped = True

    def _now(self) -> tuple[int, ...]:
        return tuple(
            weight.data_ptr() if weight.is_inference() else weight.data_ptr() + weight._version
            for weight in self._weights
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"weights": self._weights, "changed": self.changed}

    def __setstate__(self, state: dict[str, Any]) -> None:  # copies have other versions and places
        self._weights = state["weights"]
        self._begin()
        self._stepped = state["changed"]


def _note_step(optimizer: Optimizer, *_: Any) -> None:
    for watch in list(WATCHES):
        watch.note(optimizer)
