"""A plan as the core takes it, and whether one from a file fits the session.

Covers: handing over what it has done; reading one, and the settings of a session by it; what ties a plan of another
process to this one.
Leaves: making plans, and what they mean for the core (:mod:`lgm`), when (``planner``), following them
(``kernels/iteration/plan_runner.h``).
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

import lgm
from lgm.placing.orders import Orders
from lgm.placing.seats import to_spare

from ..errors import ConfigError
from ..native.core import Core
from ..settings.config import Config, make_config
from ..settings.options import Options
from ..settings.sizes import format_bytes
from .recordings import Recording

__all__ = ["config_and_plan", "install", "read_plan", "recording_of", "to_plan_for"]

_COLUMNS = ("op", "tensor", "first", "last")


def _recorded(recording: Recording) -> dict[str, object]:
    """What tells the core whether an iteration is the one that was recorded, and which tensor is which."""
    trace = recording.trace
    return {
        "names": list(trace.names),
        "op_name": trace.op_name,
        "tensor_bytes": trace.tensor_bytes,
        "tensor_born": trace.tensor_born,
        "used": np.bincount(trace.use_tensor, minlength=trace.tensors) > 0,
        "births": recording.births,
        "lasting": recording.lasting,
        "serial": recording.serial,
        "previous": recording.previous,
        "computing_ns": int(trace.op_ns.sum()),
        "followed": recording.followed,
    }


def install(core: Core, orders: Orders, recording: Recording) -> None:
    """Hand over what is to be done; it is, from the next boundary on."""
    moves = {"out": orders.departures, "in": orders.arrivals, "drop": orders.drops, "make": orders.makes}
    columns = {f"{way}_{name}": getattr(copies, name) for way, copies in moves.items() for name in _COLUMNS}
    columns |= {f"away_{name}": orders.away[:, k] for k, name in enumerate(_COLUMNS[1:])}
    columns |= {name: getattr(orders, name) for name in ("at", "sees", "keep", "seat_first", "seat_chunk")}
    core.install_plan(columns | _recorded(recording))


def to_plan_for(core: Core, trace: lgm.Trace, device: lgm.Device, recompute: lgm.Recompute = "auto") -> lgm.Device:
    """The device as a plan is to see it: where vTensors have seats, with a few chunks less.

    Not where nothing is copied: there may be no plan for less.
    """
    if not core.ordered() or recompute == "only":
        return device
    return replace(device, budget_chunks=device.budget_chunks - to_spare(trace, device.budget_chunks))


def recording_of(plan: lgm.Plan) -> Recording:
    """What ties a plan of another process to this one: the order in which tensors are made."""
    trace = plan.recorded
    births = np.flatnonzero(trace.tensor_born >= 0)
    births = births[np.argsort(trace.tensor_born[births], kind="stable")]
    index = np.full(trace.tensors, -1, dtype=np.int64)
    index[births] = np.arange(len(births))
    zeros = np.zeros(trace.tensors, dtype=np.int64)
    return Recording(trace, births, np.where(trace.wraps, index, -1), zeros, trace.lasting.astype(np.int64), False)


def config_and_plan(
    budget: int | float | str | None, options: Options, path: str | os.PathLike[str] | None
) -> tuple[Config, lgm.Plan | None]:
    """What a session by a plan needs, or by none; its chunks are as large as the plan says.

    Parameters
    ----------
    budget, options
        The arguments of :func:`vtensor.settings.config.make_config`.
    path
        Of the plan.

    Raises
    ------
    ConfigError
        For arguments that cannot work; if the plan cannot be read, breaks a rule, or was made for other chunks or a
        larger budget.
    """
    if path is None:
        return make_config(budget, options), None
    plan = read_plan(path)
    config = make_config(budget, replace(options, chunk=plan.trace.chunk_bytes) if options.chunk is None else options)
    if config.policy != "plan":
        raise ConfigError(f"plan= and policy={config.policy!r} contradict each other; leave the policy out")
    _check_fits(plan, config, path)
    return config, plan


def read_plan(path: str | os.PathLike[str]) -> lgm.Plan:
    """A plan from a file.

    Raises
    ------
    ConfigError
        If it cannot be read or breaks a rule.
    """
    try:
        plan = lgm.load_plan(path)
        lgm.validate(plan)
    except lgm.LgmError as error:
        raise ConfigError(f"plan={os.fspath(path)!r}: {error}") from None
    return plan


def _check_fits(plan: lgm.Plan, config: Config, path: str | os.PathLike[str]) -> None:
    if plan.trace.chunk_bytes != config.chunk:
        raise ConfigError(
            f"plan={os.fspath(path)!r} was made for chunks of {format_bytes(plan.trace.chunk_bytes)}, and chunk= is "
            f"{format_bytes(config.chunk)}; leave chunk= out"
        )
    if plan.device.budget_chunks > config.budget_chunks:
        raise ConfigError(
            f"plan={os.fspath(path)!r} was made for a budget of "
            f"{format_bytes(plan.device.budget_chunks * config.chunk)}, "
            f"and budget= is {format_bytes(config.budget)}; raise it, or have one made for it (lgm analyze --budget)"
        )
    if config.recompute == "only" and plan.prediction.out_chunks + plan.prediction.in_chunks > 0:
        raise ConfigError(
            f"plan={os.fspath(path)!r} copies, and recompute='only' copies nothing; leave recompute= out, or have one "
            "made that does not (lgm analyze --recompute only)"
        )
    if config.recompute == "never" and plan.remaking is not None:
        raise ConfigError(
            f"plan={os.fspath(path)!r} makes things again, and recompute='never' does not; leave recompute= out, or "
            "have one made that only copies (lgm analyze --recompute never)"
        )
