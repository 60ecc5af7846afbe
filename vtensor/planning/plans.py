"""A plan as the core takes it, and whether one from a file fits the session.

Covers: handing over a plan, or only its copies in; reading one, and the settings of a session by it; what ties a plan
of another process to this one.
Leaves: making plans (:mod:`lgm`), when (``planner``), following them (``kernels/iteration/plan_runner.h``).
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType

import numpy as np

import lgm
from lgm.placing.mapping import away_at_turn
from lgm.placing.seats import seats, to_spare
from lgm.records.copies import Copies

from ..errors import ConfigError
from ..settings.config import Config, make_config
from ..settings.options import Options
from ..settings.sizes import format_bytes
from .recordings import Recording

__all__ = ["config_and_plan", "install", "install_arrivals", "read_plan", "recording_of", "to_plan_for"]

_NOTHING = np.zeros(0, dtype=np.int64)
_NO_MOVES = {
    **{
        f"{move}_{field}": _NOTHING
        for move in ("out", "in", "drop", "make")
        for field in ("op", "tensor", "first", "last")
    },
    **{f"away_{field}": _NOTHING for field in ("tensor", "first", "last")},
    "seat_first": _NOTHING,
    "seat_chunk": _NOTHING,
    "at": _NOTHING,
    "sees": _NOTHING,
}


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


def install_arrivals(core: ModuleType, arrivals: Copies, recording: Recording) -> None:
    """Hand over copies in alone; what leaves is the policy's. They begin from the next boundary on."""
    keep = np.ones(recording.trace.tensors, dtype=np.int64)
    # Another of an iteration that follows it would bring nothing: there nothing was found away.
    core.install_plan(_NO_MOVES | _recorded(recording) | {"keep": keep, "computing_ns": 0} | _moves("in", arrivals))


def _moves(side: str, copies: Copies) -> dict[str, object]:
    return {f"{side}_{f}": getattr(copies, f) for f in ("op", "tensor", "first", "last")}


def to_plan_for(
    core: ModuleType, trace: lgm.Trace, device: lgm.Device, recompute: lgm.Recompute = "auto"
) -> lgm.Device:
    """The device as a plan is to see it: where vTensors have seats, with a few chunks less.

    Not where nothing is copied: there may be no plan for less.
    """
    if not core.ordered() or recompute == "only":
        return device
    return replace(device, budget_chunks=device.budget_chunks - to_spare(trace, device.budget_chunks))


def install(core: ModuleType, plan: lgm.Plan, recording: Recording, budget_chunks: int) -> None:
    """Hand a plan to the core, which has so many chunks; it is followed from the next boundary on."""
    again, trace = plan.remaking, plan.recorded
    away = np.array(away_at_turn(plan), dtype=np.int64).reshape(-1, 3)
    of = np.arange(plan.trace.tensors) if again is None else again.tensor
    keep = np.zeros(trace.tensors, dtype=np.int64)
    keep[of[of >= 0]] = plan.keep[of >= 0]  # as the last of what a tensor is
    moves = {
        **_moves("out", Copies(plan.out_op, of[plan.out_tensor], plan.out_first, plan.out_last)),
        **_moves("in", Copies(plan.in_op, of[plan.in_tensor], plan.in_first, plan.in_last)),
        "away_tensor": of[away[:, 0]],
        "away_first": away[:, 1],
        "away_last": away[:, 2],
    }
    if core.ordered():  # where leading an address to another chunk costs more than a kernel
        seated = seats(plan, budget_chunks)
        if (seated.chunk >= 0).any():
            moves |= {"seat_first": seated.first, "seat_chunk": seated.chunk}
            for side, copies in (("out", seated.departures), ("in", seated.arrivals)):
                moves |= _moves(side, replace(copies, tensor=of[copies.tensor]))
            keep[:] = 0  # addresses lead to their chunks without keeping those from others
    if again is not None:
        drops, makes = again.drop_tensor, again.make_tensor
        moves |= {
            "at": again.at,
            "sees": again.sees,
            "drop_op": again.drop_op,
            "drop_tensor": drops,
            "drop_first": np.zeros_like(drops),
            "drop_last": trace.chunks[drops],
            "make_op": again.make_op,
            "make_tensor": makes,
            "make_first": np.zeros_like(makes),
            "make_last": trace.chunks[makes],
        }
    core.install_plan(_NO_MOVES | _recorded(recording) | {"keep": keep} | moves)


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
