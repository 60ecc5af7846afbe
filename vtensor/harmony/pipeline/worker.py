"""Every other process' side of a step: it does what the first one says, in the order in which it was said.

Covers: running layers and their backward, keeping what they make as long as somebody may ask for it, updates.
Leaves: what is said (``orders``), carrying it (``mail``), which parameters are complete (``updates``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...errors import HarmonyError
from ..generators import generator_state, set_generator_state
from ..processes.mail import Mail
from ..processes.wire import layout_of, pack, unpack
from .orders import MOST_KNOWN, STATE, Back, End, Failed, Fetch, Forget, Key, Modes, Result, Run, Send

__all__ = ["Worker"]


class Worker:
    """Follows orders.

    Parameters
    ----------
    mail
        To the other processes; the first is the one with rank 0.
    layers
        All of them, in the order in which they are numbered.
    names
        What to call each in messages.
    """

    def __init__(self, mail: Mail, layers: Sequence[nn.Module], names: Sequence[str]) -> None:
        self._mail, self._layers, self._names = mail, layers, names
        self._microbatch: int | None = None
        self._tensors: dict[Key, torch.Tensor] = {}
        self._runs: dict[int, _Ran] = {}
        self._alike: dict[Any, Result] = {}  # of each signature, what was answered

    def current(self) -> int | None:
        """The microbatch whose layer runs."""
        return self._microbatch

    def serve(self, after_backward: Callable[[], None]) -> End:
        """Do what is said until the step ends; `after_backward` is called when gradients may be complete.

        Raises
        ------
        HarmonyError
            If the first process failed, or what a layer does cannot be done from afar.
        """
        while True:
            order = self._mail.hear(0)
            if isinstance(order, Run):
                self._run(order)
            elif isinstance(order, Back):
                self._back(order)
                after_backward()
            elif isinstance(order, Send):
                self._mail.send(self._tensors[order.key], order.to, order.tag)
            elif isinstance(order, Forget):
                for key in order.keys:
                    self._tensors.pop(key, None)
            elif isinstance(order, Failed):
                raise HarmonyError(f"the first process failed: {order.why}")
            else:
                assert isinstance(order, End)
                self._tensors.clear()
                self._runs.clear()
                return order

    def _fetch(self, fetches: Sequence[Fetch]) -> None:
        parcels = [(each.key, self._mail.expect(each.layout, each.source, each.tag)) for each in fetches]
        for key, parcel in parcels:
            self._tensors[key] = parcel.wait()

    # --- forward ------------------------------------------------------------------------------------------------

    def _run(self, order: Run) -> None:
        self._fetch(order.fetches)
        layer = self._layers[order.layer]
        ran = self._runs[order.order] = _Ran(order.microbatch, len(order.tensors), self._names[order.layer])
        arguments = [
            _Enter.apply(ran, index, _NEEDS, self._tensors[key]) if needed else self._tensors[key]  # type: ignore[no-untyped-call]
            for index, (key, needed) in enumerate(zip(order.tensors, order.needed, strict=True))
        ]
        versions = [tensor._version for tensor in arguments]
        args, kwargs = unpack(order.arguments, arguments)
        for module, training in zip(layer.modules(), order.modes.training, strict=True):
            module.training = training
        before = self._tensors[order.state]
        set_generator_state(before)
        self._microbatch = order.microbatch
        with _thread_state(order.modes):
            value = layer.forward(*args, **kwargs)
        self._microbatch = None
        if [tensor._version for tensor in arguments] != versions:
            raise HarmonyError(f"the layer {ran.name} writes into its arguments, which live elsewhere: {_STAY}")
        after = self._tensors[Key(order.order, STATE)] = generator_state()
        self._keep(order, ran, arguments, value, not torch.equal(before, after))

    def _keep(self, order: Run, ran: _Ran, arguments: Sequence[torch.Tensor], value: Any, draws: bool) -> None:
        packed, results = pack(value, f"what the layer {ran.name} returns", given=arguments)
        for index, tensor in enumerate(results):
            self._tensors[Key(order.order, index)] = tensor.detach()
            ran.results.append(get_gradient_edge(tensor) if tensor.requires_grad else None)
        layouts = tuple(layout_of(tensor) for tensor in results)
        result = Result(packed, layouts, tuple(tensor.requires_grad for tensor in results), draws)
        if order.ask:
            self._mail.say(result, 0)
        if len(self._alike) >= MOST_KNOWN:
            self._alike.clear()
        if self._alike.setdefault(order.signature, result) != result:
            raise HarmonyError(
                f"the layer {ran.name} returned something else for arguments of the same shapes, besides the values of "
                f"tensors; who called it did not know: {_STAY}"
            )

    # --- backward -----------------------------------------------------------------------------------------------

    def _back(self, order: Back) -> None:
        self._fetch(order.fetches)
        ran = self._runs.pop(order.run, None)
        if ran is None:
            raise HarmonyError("a loss went backward twice through a layer: let loss= return the sum instead")
        given = [
            (edge, self._tensors[key])
            for edge, key in zip(ran.results, order.gradients, strict=True)
            if edge is not None and key is not None
        ]
        self._microbatch = ran.microbatch
        if given:
            # On this thread: updates ask whose turn it is.
            with torch.autograd.set_multithreading_enabled(False):
                torch.autograd.backward([edge for edge, _ in given], [gradient for _, gradient in given])
        self._microbatch = None
        if order.promised not in (None, tuple(gradient is not None for gradient in ran.gradients)):
            raise HarmonyError(
                f"the layer {ran.name} gave a gradient to an argument for one microbatch and none for another; who "
                f"called it did not know: {_STAY}"
            )
        for index, gradient in enumerate(ran.gradients):
            if gradient is not None:
                self._tensors[Key(order.order, index)] = gradient
        if order.promised is None:
            self._mail.say(tuple(None if g is None else layout_of(g) for g in ran.gradients), 0)


_STAY = "name the other layers with layers=, so that this one stays in the first process"


class _Ran:
    """A run whose backward is to come."""

    def __init__(self, microbatch: int, arguments: int, name: str) -> None:
        self.microbatch, self.name = microbatch, name
        self.results: list[GradientEdge | None] = []
        self.gradients: list[torch.Tensor | None] = [None] * arguments


_NEEDS = torch.empty(0, device="cpu", requires_grad=True)


class _Enter(torch.autograd.Function):
    """Where a gradient leaves a layer, as it is: what is accumulated in a leaf takes the leaf's layout instead."""

    @staticmethod
    def forward(ctx: Any, ran: _Ran, index: int, _needs: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The same values, which need a gradient, as `_needs` does."""
        ctx.ran, ctx.index = ran, index
        return tensor.data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Noted; it goes no further."""
        ctx.ran.gradients[ctx.index] = gradient
        return None, None, None, None


@contextlib.contextmanager
def _thread_state(modes: Modes) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        for kind, enabled, dtype in modes.autocast:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield
