"""The first process' side of a step: layers that live elsewhere are called there.

Covers: what a layer's ``forward`` is meanwhile, its backward, fetching what was promised, the generators' states along
the way.
Leaves: whose turn it is (``weave``), who has which tensor (``ledger``), doing the work (``worker``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ...errors import HarmonyError
from ..forwards import Forwards
from ..generators import generator_state, set_generator_state
from ..microbatches import tensors_of
from ..processes.mail import Mail
from ..processes.wire import Layout, layout_of, pack, unpack
from ..turns.weave import Weave
from .ledger import Ledger
from .orders import MOST_KNOWN, STATE, Back, Fetch, Key, Modes, Result, Run
from .promise import Promise

__all__ = ["Callee", "Calls", "Known"]


class Known:
    """What is remembered from step to step: how the results of runs and the gradients of backwards are laid out."""

    def __init__(self) -> None:
        self.results: dict[Any, Result] = {}
        self.gradients: dict[Any, tuple[Layout | None, ...]] = {}
        self.draws_between = False  # whether the program draws random numbers between layers

    def bound(self) -> None:
        """Forget, before there are too many: it is asked for again."""
        if len(self.results) >= MOST_KNOWN:
            self.results.clear()
            self.gradients.clear()


class Callee(NamedTuple):
    """A layer, and what those who call it have to know."""

    layer: nn.Module
    number: int
    owner: int
    name: str
    ranks: tuple[int, int]
    """With which rank to stop before what follows its forward and its backward."""


class Calls:
    """Calls of one step.

    Parameters
    ----------
    mail
        To the other processes.
    callees
        The layers.
    weave
        Whose turn it is.
    known
        Of earlier steps.
    """

    def __init__(self, mail: Mail, callees: Sequence[Callee], weave: Weave, known: Known) -> None:
        self._mail, self._weave, self._known = mail, weave, known
        self._ledger = Ledger(mail)
        self._states: dict[int, Promise] = {}  # of a microbatch' generators, where they are elsewhere
        self._state_layout = layout_of(generator_state())
        self._dummy = torch.empty(0, device="cpu", requires_grad=True)
        self._forwards = Forwards()
        self._hooks: list[Any] = []
        for callee in callees:
            layer = callee.layer
            if callee.owner == mail.rank:
                self._watch(layer)
                continue
            self._forwards.exchange(layer, self._elsewhere(callee))
            for parameter in layer.parameters():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(_refuse(callee))  # type: ignore[no-untyped-call]
                    self._hooks.append(hook)

    def _watch(self, layer: nn.Module) -> None:
        """A layer that is here: what it is given is on its way when it stops, and so are gradients."""

        def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
            self._soon(args, kwargs)

        def after(_module: nn.Module, _args: Any, output: Any) -> None:
            for tensor in tensors_of(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(self._soon)  # type: ignore[no-untyped-call]

        self._hooks += [
            layer.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            layer.register_forward_pre_hook(lambda *_: self.take_state()),
            layer.register_forward_hook(after, prepend=True),
        ]

    def remove(self) -> None:
        """The model is as it was."""
        self._forwards.put_back()
        for hook in self._hooks:
            hook.remove()
        self._ledger.close()

    # --- forward ------------------------------------------------------------------------------------------------

    def _elsewhere(self, callee: Callee) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._weave.current() is None:
                raise HarmonyError(f"the layer {callee.name} lives in another process: call it in microbatches only")
            if torch._C._current_graph_task_id() >= 0:
                raise HarmonyError(
                    f"the layer {callee.name} was run again in backward: pass recompute=True instead of using the "
                    "model's own checkpoints"
                )
            return self._call(callee, args, kwargs)

        return forward

    def _call(self, callee: Callee, args: Any, kwargs: Any) -> Any:
        arguments, inputs = pack((args, kwargs), f"an argument of the layer {callee.name}")
        request = _Request(self, callee, arguments)
        results = _Call.apply(request, self._dummy, *inputs)  # type: ignore[no-untyped-call]
        return unpack(request.result.value, results, given=inputs)

    def run(self, request: _Request, inputs: Sequence[torch.Tensor], needed: tuple[bool, ...]) -> list[Promise]:
        """Order a layer's forward; its results, promised."""
        microbatch, callee = self._microbatch(), request.callee
        fetches: list[Fetch] = []
        keys = tuple(self._ledger.refer(tensor, callee.owner, fetches) for tensor in inputs)
        state = self._states.get(microbatch)
        state_key = self._ledger.refer(generator_state() if state is None else state, callee.owner, fetches)
        layouts = tuple(layout_of(tensor) for tensor in inputs)
        signature = request.signature = (
            callee.number,
            request.arguments,
            layouts,
            needed,
            request.modes,
            request.trained,
        )
        ask = signature not in self._known.results
        request.leaves = tuple(tensor.is_leaf for tensor in inputs)
        request.order = self._ledger.next_order()
        order = Run(
            request.order, microbatch, callee.number, request.arguments, keys, needed, tuple(fetches), request.modes,
            state_key, hash(signature), ask,
        )  # fmt: skip
        self._ledger.say(order, callee.owner)
        if ask:
            self._known.bound()
            self._known.results[signature] = self._mail.hear(callee.owner)
        request.result = self._known.results[signature]
        if request.result.draws:
            state = Promise(self._state_layout, Key(request.order, STATE), callee.owner, ask=self._ledger.ask_for)
            self._states[microbatch] = self._ledger.enter(state)
            if self._known.draws_between:
                self._before_waiting(callee.ranks[0])
        layouts = request.result.layouts
        return [self._promise(layout, Key(request.order, k), callee, 0) for k, layout in enumerate(layouts)]

    # --- backward -----------------------------------------------------------------------------------------------

    def back(self, request: _Request, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Order the backward of a run; the gradients of its inputs, promised."""
        fetches: list[Fetch] = []
        callee = request.callee
        keys = tuple(None if g is None else self._ledger.refer(g, callee.owner, fetches) for g in gradients)
        signature = (request.signature, tuple(None if g is None else layout_of(g) for g in gradients))
        ask = signature not in self._known.gradients
        order = self._ledger.next_order()
        promised = None if ask else tuple(layout is not None for layout in self._known.gradients[signature])
        self._ledger.say(Back(order, request.order, keys, promised, tuple(fetches)), callee.owner)
        if ask:
            self._known.gradients[signature] = self._mail.hear(callee.owner)
        found = [
            None if layout is None else self._promise(layout, Key(order, k), callee, 1)
            for k, layout in enumerate(self._known.gradients[signature])
        ]
        # Autograd locks a leaf while it adds to its gradient: nobody may wait there for others to go on.
        return [g.get() if leaf and g is not None else g for g, leaf in zip(found, request.leaves, strict=True)]

    # --- what was promised --------------------------------------------------------------------------------------

    def _promise(self, layout: Layout, key: Key, callee: Callee, way: int) -> Promise:
        def before_waiting() -> None:
            self._before_waiting(callee.ranks[way])

        return self._ledger.enter(
            Promise(layout, key, callee.owner, ask=self._ledger.ask_for, before_waiting=before_waiting)
        )

    def _before_waiting(self, rank: int) -> None:
        self._expect_state()
        if self._weave.current() is not None:
            self._weave.stop(rank)  # others go on meanwhile
        self.take_state()

    def _soon(self, *values: Any) -> None:
        """Before the microbatch stops: what it will look at then is to be on its way."""
        self._expect_state()
        for tensor in tensors_of(values):
            if isinstance(tensor, Promise):
                tensor.expect()

    def _expect_state(self) -> None:
        state = self._states.get(self._microbatch())
        if state is not None:
            state.expect()

    def take_state(self) -> None:
        """From now on the microbatch that runs draws its random numbers here."""
        state = self._states.pop(self._microbatch(), None)
        if state is not None:
            set_generator_state(state.get())

    def _microbatch(self) -> int:
        current = self._weave.current()
        return -1 if current is None else current


class _Request:
    """A run of a layer elsewhere, and what is known of it when it has been ordered."""

    def __init__(self, calls: Calls, callee: Callee, arguments: bytes) -> None:
        self.calls, self.callee, self.arguments = calls, callee, arguments
        self.modes = _modes(callee.layer)
        self.trained = tuple(parameter.requires_grad for parameter in callee.layer.parameters())
        self.order = 0
        self.leaves: tuple[bool, ...] = ()
        self.signature: Any = None
        self.result: Result


class _Call(torch.autograd.Function):
    """A layer elsewhere, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, request: _Request, _dummy: torch.Tensor, *inputs: torch.Tensor) -> Any:
        """Its results. The dummy needs a gradient, as the layer's parameters may."""
        ctx.set_materialize_grads(False)
        ctx.request = request
        results = request.calls.run(request, inputs, tuple(ctx.needs_input_grad[2:]))
        differentiable = request.result.differentiable
        ctx.mark_non_differentiable(*(r for r, can in zip(results, differentiable, strict=True) if not can))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """The gradients of its inputs."""
        return None, None, *ctx.request.calls.back(ctx.request, gradients)


def _refuse(callee: Callee) -> Callable[[torch.Tensor], None]:
    def refuse(_parameter: torch.Tensor) -> None:
        raise HarmonyError(
            f"a parameter of the layer {callee.name} is used outside of it, and lives in another process: name other "
            "layers with layers=, so that this one stays in the first process"
        )

    return refuse


def _modes(layer: nn.Module) -> Modes:
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    autocast = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)
    return Modes(torch.is_grad_enabled(), autocast, tuple(module.training for module in layer.modules()))
