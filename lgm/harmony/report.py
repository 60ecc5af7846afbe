"""A schedule for people: a table, and its events for ui.perfetto.dev.

Covers: text and Chrome trace JSON. Leaves: the search (``search``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import LgmError
from ..records.units import format_bytes, format_seconds
from .events import Outcome
from .packing import Packs
from .profile import Profile
from .search import Found
from .tasks import Machine, Mode

__all__ = ["perfetto", "table"]

_MODES = {
    "pipeline": "pipeline: packs distributed over the devices (vPP)",
    "data": "data parallel: each device a share of the samples (vDP)",
}


def table(profile: Profile, machine: Machine, found: Mapping[Mode, Found], refused: Mapping[Mode, LgmError]) -> str:
    """What each way takes, or why it is none."""
    weights = float(profile.weights.sum())
    lines = [
        f"  {len(profile)} layers, weights {format_bytes(round(weights))}, states "
        f"{format_bytes(round(float(profile.states.sum())))}; {machine.devices} device{'s' * (machine.devices > 1)} of "
        f"{format_bytes(round(machine.budget))}"
    ]
    for mode, each in found.items():
        s, o = each.schedule, each.outcome
        swapped = o.swapped_in + o.swapped_out
        lines += [
            "",
            f"  {_MODES[mode]}, fastest of {each.tried} schedules",
            f"    step           {format_seconds(o.seconds)}, of which computing {o.computing / o.seconds:.0%}",
            f"    throughput     {s.samples / o.seconds:.1f} samples/s",
            f"    copied         {format_bytes(round(o.swapped_in))} in, {format_bytes(round(o.swapped_out))} out "
            f"({swapped / max(weights, 1):.1f} x weights)",
        ]
        if machine.devices > 1:
            lines.append(f"    between them   {format_bytes(round(o.between_devices))}")
        if s.forward:
            lines.append(f"    forward        {_packs(s.forward)}, microbatches of {s.forward_samples}")
        lines.append(f"    backward       {_packs(s.backward)}, microbatches of {s.backward_samples}")
    for mode, why in refused.items():
        lines += ["", f"  {_MODES[mode]}: {why}"]
    return "\n".join(lines)


def _packs(packs: Packs) -> str:
    sizes = [stop - first for first, stop in packs]
    layers = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return f"{len(packs)} pack{'s' * (len(packs) > 1)} of {layers} layer{'s' * (layers != '1')}"


def perfetto(outcome: Outcome, path: str | os.PathLike[str]) -> None:
    """Write the iteration as Chrome trace JSON."""
    queues = ["compute", "in", "out", "peer", "host"]
    events: list[dict[str, object]] = []
    for device in sorted({event.device for event in outcome.events}):
        events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": f"device {device}"}})
        for tid, queue in enumerate(queues):
            events.append({"ph": "M", "pid": device, "tid": tid, "name": "thread_name", "args": {"name": queue}})
    for event in outcome.events:
        length = event.end - event.begin
        place = {"pid": event.device, "tid": queues.index(event.queue)}
        events.append({"ph": "X", **place, "name": event.name, "ts": event.begin * 1e6, "dur": length * 1e6})
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
