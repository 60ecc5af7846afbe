"""What is to be known of a program before its layers live in different processes.

Covers: whether it draws random numbers between layers; whether its loss needs more of a layer than what that returns;
taking back what modules noted on themselves meanwhile.
Leaves: running it (``trainer``), in which order layers run (``stops``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import HarmonyError
from ..forwards import Forwards
from ..generators import generator_state, set_generator_state
from ..processes.wire import pack, unpack

__all__ = ["Look"]


class _AsTheyWere:
    """Afterwards modules have the attributes they had, and the hooks.

    What a layer would note on itself elsewhere is missing here then, and is not taken from this run by who reads it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self._contents: list[tuple[dict[Any, Any], dict[Any, Any]]] = []

    def __enter__(self) -> None:
        self._attributes = [(module, dict(vars(module))) for module in self._model.modules()]
        kept = [value for _, attributes in self._attributes for value in attributes.values() if isinstance(value, dict)]
        self._contents = [(value, dict(value)) for value in kept]

    def __exit__(self, *exception: object) -> None:
        for module, before in self._attributes:
            now = vars(module)
            for name in now.keys() - before.keys():
                del now[name]
            now.update(before)
        for value, content in self._contents:
            value.clear()
            value.update(content)


class _Returned(NamedTuple):
    """What a layer returned, without its tensors; those; and the generators' states after it."""

    value: Any
    tensors: list[torch.Tensor] | None  # None: it cannot be taken apart
    state: torch.Tensor


class Look:
    """While it is entered the program runs as a whole, in the first process."""

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        self._model, self._layers, self._as_they_were = model, layers, _AsTheyWere(model)
        self._hooks: list[Any] = []
        self._left: torch.Tensor | None = None
        self._returned: dict[nn.Module, list[_Returned]] = defaultdict(list)
        self.draws_between = False
        """Whether random numbers were drawn between one layer and the next."""

    def __enter__(self) -> Look:
        self._as_they_were.__enter__()
        for layer in self._layers:
            self._hooks.append(layer.register_forward_pre_hook(self._enters))
            self._hooks.append(layer.register_forward_hook(self._leaves, prepend=True))
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._as_they_were.__exit__(*exception)

    def _enters(self, *_: Any) -> None:
        if self._left is not None:
            self.draws_between |= not torch.equal(self._left, generator_state())

    def _leaves(self, module: nn.Module, _args: Any, output: Any) -> None:
        self._left = generator_state()
        try:
            value, tensors = pack(output, "what it returns")
            returned = _Returned(value, [tensor.detach().clone() for tensor in tensors], self._left)
        except HarmonyError:  # said where it has to go to another process
            returned = _Returned(output, None, self._left)
        self._returned[module].append(returned)

    def check(self, run: Callable[[], Any], loss: Any, elsewhere: Sequence[nn.Module]) -> None:
        """Run the program once more, with what these layers returned in the place of what they do.

        Raises
        ------
        HarmonyError
            If `run` does not return the loss it had.
        """
        forwards = Forwards()
        for layer in elsewhere:
            forwards.exchange(layer, _repeats(self._returned[layer]))
        self._returned = {}
        try:
            with _AsTheyWere(self._model):
                try:
                    why = "" if _same(run(), loss) else "it comes out differently"
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
        finally:
            forwards.put_back()
        if not why:
            return
        with _AsTheyWere(self._model):
            if not _same(run(), loss):
                return  # it differs by itself
        raise HarmonyError(
            "the loss needs more of layers than what they return, which is all that comes from another process "
            f"({why}): what they keep on themselves, or what forward hooks on modules inside of them hand out, as "
            "transformers' output_attentions and output_router_logits do; name other layers with layers="
        )


def _repeats(returned: Sequence[_Returned]) -> Callable[..., Any]:
    left = iter(returned)

    def forward(*_: Any, **__: Any) -> Any:
        value, tensors, state = next(left)
        set_generator_state(state)
        return value if tensors is None else unpack(value, tensors)

    return forward


def _same(loss: Any, other: Any) -> bool:
    return not isinstance(loss, torch.Tensor) or (isinstance(other, torch.Tensor) and torch.equal(loss, other))
