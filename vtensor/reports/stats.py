"""What vtensor did so far, in the style of ``torch.cuda.memory_stats``.

Covers: the flat dictionary, the table for people, resetting peaks.
Leaves: counting (``kernels/memory/counters.h``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..errors import NotEnabledError
from ..planning.current_planner import newest_plan, why_no_plan
from ..session.lifecycle import active_config, active_core, is_enabled, is_kept_off
from ..settings.environment import rank_of_several
from ..settings.sizes import format_bytes

__all__ = ["memory_stats", "memory_summary", "reset_peak_memory_stats"]

_TO_PLAN = 4  # iterations: the first makes states, the second is recorded, the third like it, a plan is made
_AMOUNTS = ("tensor_bytes", "wanted_bytes", "absent_bytes", "borrowed_bytes", "dropped_bytes")
_TOTALS = (
    "moved_out_bytes", "moved_in_bytes", "made_bytes", "evictions", "discards", "drops", "cancels", "faults",
    "oversize", "failures", "host_waits", "allocations", "reused", "remaps", "late_arrivals",
)  # fmt: skip
_OF_PLANS = (
    "iterations", "planned_iterations", "deviations", "rejoined", "operations", "planned_operations", "plans",
)  # fmt: skip


def memory_stats() -> dict[str, Any]:
    """All figures as a flat dictionary.

    Amounts have the four keys ``<name>.current``, ``.peak``, ``.allocated`` (all ever added) and ``.freed``:

    - ``tensor_bytes``: managed tensors, as asked for
    - ``wanted_bytes``: the same in whole chunks; its peak is what an unlimited budget would hold
    - ``absent_bytes``: tensor bytes whose only place is the host store
    - ``borrowed_bytes``: of these, used in place by operations larger than the budget
    - ``dropped_bytes``: tensor bytes that are nowhere, as they will be recomputed when they are needed
    - ``unmanaged_bytes``: tensors smaller than ``min_size``, in torch's own memory
    - ``held_bytes`` (current and peak only): all chunks held; never above ``budget_bytes`` plus ``overdrawn_bytes``
    - ``used_bytes`` (current and peak only): of these, held by tensors; the others are freed memory that waits, mapped,
      for a tensor of its size
    - ``overdrawn_bytes`` (current and peak only): held beyond the budget by operations that alone need more, on a GPU
      without ``VTENSOR_HOST_IN_PLACE=1``; 0 on the CPU
    - ``host_bytes`` (current and peak only): slots in use in the host store; ``pinned_bytes`` of it, pinned for a GPU

    Settings: ``budget_bytes``, ``host_capacity_bytes``, ``chunk_bytes``.

    The rest are totals: ``moved_out_bytes``, ``moved_in_bytes``, ``evictions`` (vTensors copied out), ``discards``
    (vTensors that needed no copy to leave), ``drops`` (vTensors that left to be recomputed), ``made_bytes`` and
    ``make_seconds`` (what was recomputed, and how long that took), ``cancels`` (moves turned back because the data was
    wanted again), ``faults`` (reads outside operations), ``oversize`` (times the budget had no room for what an
    operation reads, or for what it makes), ``failures`` (survived), ``host_waits`` (times a thread stood until a GPU
    had done something), ``wait_seconds`` (of operations and allocations that stood for copies), ``allocations``,
    ``reused`` (of them, from freed memory that was still mapped), ``remaps`` (chunks mapped anew).

    Of plans: ``iterations`` seen, ``planned_iterations`` (followed a plan from end to end), ``deviations`` (left one),
    ``rejoined`` (times one that had left its plan was where it is followed again), ``operations`` (of iterations for
    which there were plans; those that use no managed memory are not counted) and ``planned_operations`` (that followed
    one), ``plans`` made, ``predicted_step_seconds`` and ``predicted_bytes`` (what the newest plan promises of step time
    and ``used_bytes``; 0 without one), ``timely_arrivals`` and ``late_arrivals`` (vTensors a plan brought back in time,
    and not), ``hidden_copy_seconds`` (copying that nothing waited for). ``copy_lanes``: whether copies move beside
    computing. On the CPU without ``link`` and ``spill_dir`` they do not, because the threads that compute move them
    (unless torch computes with one thread, or with less than half of the processors); then nothing is hidden, and what
    a plan brings back is moved when it is needed: a late arrival.

    While ``VTENSOR_DISABLE=1`` keeps vtensor off every figure that is asked for is 0.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    """
    if is_kept_off():
        return defaultdict(int)
    core = active_core()
    try:
        shot = core.snapshot()
    except core.InvalidUse:  # another thread ended the session a moment ago
        raise NotEnabledError from None
    chunk = shot["chunk_bytes"]
    stats: dict[str, Any] = {}
    every: Mapping[str, Any] = shot
    for name in _AMOUNTS:
        stats.update({f"{name}.{key}": value for key, value in every[name].items()})
    stats.update({f"unmanaged_bytes.{key}": value for key, value in core.unmanaged().items()})
    stats["held_bytes.current"] = shot["held_chunks"] * chunk
    stats["held_bytes.peak"] = shot["peak_held_chunks"] * chunk
    stats["used_bytes.current"] = (shot["held_chunks"] - shot["cached_chunks"]) * chunk
    stats["used_bytes.peak"] = shot["peak_used_chunks"] * chunk
    stats["overdrawn_bytes.current"] = shot["overdrawn_chunks"] * chunk
    stats["overdrawn_bytes.peak"] = shot["peak_overdrawn_chunks"] * chunk
    stats["host_bytes.current"] = shot["slots_used"] * chunk
    stats["host_bytes.peak"] = shot["slots_peak"] * chunk
    stats["pinned_bytes"] = shot["pinned_bytes"]
    stats["budget_bytes"] = shot["budget_chunks"] * chunk
    stats["host_capacity_bytes"] = shot["slots_capacity"] * chunk
    stats["chunk_bytes"] = chunk
    stats["copy_lanes"] = not shot["moves_in_wait"]
    stats["make_seconds"], stats["wait_seconds"] = shot["make_ns"] / 1e9, shot["wait_ns"] / 1e9
    stats["hidden_copy_seconds"] = max((shot["out_ns"] + shot["in_ns"]) / 1e9 - stats["wait_seconds"], 0.0)
    stats["timely_arrivals"] = shot["arrivals"] - shot["late_arrivals"]
    stats |= {name: every[name] for name in _TOTALS}
    plans: Mapping[str, Any] = core.plan_counters()
    stats |= {name: plans[name] for name in _OF_PLANS}
    plan = newest_plan()
    stats["predicted_step_seconds"] = 0.0 if plan is None else plan.prediction.step_seconds
    stats["predicted_bytes"] = 0 if plan is None else plan.prediction.peak_chunks * plan.trace.chunk_bytes
    return stats


class _Table(str):
    """Read as its lines where it is the last line of a notebook's cell, too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def memory_summary() -> str:
    """The figures a person asks for first, as a table of plain text.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    """
    if is_kept_off():
        return _Table("vtensor: off, as VTENSOR_DISABLE is set")
    s = memory_stats()
    config = active_config()
    size = {name: format_bytes(value) for name, value in s.items() if "bytes" in name}

    def peak(name: str) -> str:
        return f"peak {size[name + '.peak']}"

    waited = f"waited {s['wait_seconds']:.2f} s for copies"
    rows = [
        ("budget", size["budget_bytes"], ""),
        ("held in chunks", size["held_bytes.current"], peak("held_bytes")),
        ("wanted by tensors", size["wanted_bytes.current"], peak("wanted_bytes")),
        ("absent, in the host store", size["absent_bytes.current"], peak("absent_bytes")),
        ("small tensors, unmanaged", size["unmanaged_bytes.current"], peak("unmanaged_bytes") + _mostly_small(s)),
        ("moved out", size["moved_out_bytes"], f"{s['evictions']} vTensors; {s['discards']} more needed no copy"),
        ("moved in", size["moved_in_bytes"], "of what was used in place" if _without_copies() else waited),
        ("planned iterations", f"{s['planned_iterations']} of {s['iterations']}", _plan_note(s)),
        _oversize(s, size["borrowed_bytes.peak"]),
    ]
    if s["drops"]:
        made = f"peak {size['dropped_bytes.peak']} dropped; {s['make_seconds']:.2f} s of computing"
        rows.insert(-2, ("recomputed", size["made_bytes"], made))
    if s["overdrawn_bytes.peak"]:
        rows.append(("beyond the budget", size["overdrawn_bytes.current"], peak("overdrawn_bytes")))
    title = f"vtensor{_rank()}: {config.policy} by {config.granularity}, chunks of {format_bytes(config.chunk)}"
    if not is_enabled():
        title += " (tensors from before this process was forked; those made in it are torch's)"
    return _Table("\n".join([title, *(f"  {name:<26} {value:>14}   {note}".rstrip() for name, value, note in rows)]))


def _mostly_small(s: dict[str, Any]) -> str:
    """A hint for who keeps a budget that most of the program's memory is not counted in."""
    if s["unmanaged_bytes.peak"] <= max(s["wanted_bytes.peak"], s["budget_bytes"]):
        return ""
    smaller = "min_size= (--min-size)" if active_config().device == "cuda" else "chunk= (--chunk) or min_size="
    return f"; more than the budget: with a smaller {smaller} more of it is managed"


def _without_copies() -> bool:
    """Whether what leaves is recomputed, and never copied."""
    return active_config().recompute == "only"


def _rank() -> str:
    several = rank_of_several()
    return "" if several is None else " (process {} of {})".format(*several)


def _oversize(s: dict[str, Any], borrowed: str) -> tuple[str, str, str]:
    if s["oversize"] or not s["borrowed_bytes.peak"]:
        note = f"peak {borrowed} used in place, in the host store" if s["borrowed_bytes.peak"] else ""
        name = "found no room" if _without_copies() else "larger than the budget"  # it need not be large then
        return name, f"{s['oversize']} operations", note
    return "used in place", f"peak {borrowed}", "in the host store, for want of room"


def _plan_note(s: dict[str, Any]) -> str:
    if not s["plans"]:
        return f"no plan: {_why_no_plan(s)}" if active_config().policy == "plan" else ""
    left = f"{s['deviations']} left their plan"
    if s["deviations"]:
        left += f" ({_why_left()})"
    if s["rejoined"]:
        left += f" and came back to it: {s['planned_operations'] / s['operations']:.0%} of all operations as planned"
    if _without_copies():
        return left
    if not s["copy_lanes"]:
        return f"{left}; copies made by the computing threads"
    hidden, waited = s["hidden_copy_seconds"], s["wait_seconds"]
    if hidden + waited <= 0:
        return left
    return f"{left}; {hidden / (hidden + waited):.0%} of copying hidden; {s['late_arrivals']} late arrivals"


def _why_left() -> str:
    """Where the last iteration that left its plan did."""
    left_at = active_core().plan_counters()["left_at"]
    return "the last ended early" if left_at is None else f"the last at operation {left_at[0]}, {left_at[1]}"


def _why_no_plan(s: dict[str, Any]) -> str:
    if not s["evictions"] + s["discards"] + s["drops"]:
        return "everything fits"
    if why := why_no_plan():
        return why
    return "no two iterations were alike yet" if s["iterations"] > _TO_PLAN else "an iteration has to come twice first"


def reset_peak_memory_stats() -> None:
    """Set every ``.peak`` to its current value.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    """
    if not is_kept_off():
        active_core().reset_peaks()
