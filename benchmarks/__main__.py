"""``python -m benchmarks [ID ...]``: run the cases of PLAN.md, all of them by default."""

from __future__ import annotations

import argparse

from . import (
    batches,
    devices,
    fitting,
    growth,
    harmony,
    lengths,
    loops,
    modelled,
    overhead,
    packs,
    padding,
    pipeline,
    plans,
    remaking,
    steps,
    traces,
    unlike,
)
from .ecosystem import run as ecosystem
from .edge import link_here

CASES = {
    "O": ("cost of one operation and of one allocation", overhead.run),
    "S1": ("a budget above the peak", steps.slack),
    "S2": ("the reactive policy below the peak", steps.reactive),
    "S3": ("torch.utils.checkpoint beside vtensor", steps.peers),
    "S4": ("other reactive policies at half of the peak", lambda: steps.policies(link_here())),
    "traces": ("record traces/ again, which the other cases read; only if asked for", traces.run),
    "B2": ("the simulator against reality", plans.accuracy),
    "B3": ("plans beside plain torch and LRU, no limit on the link", plans.unlimited),
    "B4": ("the paper's experiment at the link of an edge GPU", lambda: plans.edge(link_here())),
    "B4s": ("the same in the simulator, six models and three budgets", plans.simulated),
    "R5": ("plans that copy and recompute beside plans that only copy, B4's link", lambda: remaking.edge(link_here())),
    "R7": ("larger batches in the memory of a smaller one", lambda: batches.larger(link_here())),
    "R8": ("less real memory with nothing copied, beside torch.utils.checkpoint", batches.only),
    "R9": ("plans of the best checkpoints on unmodified models", remaking.checkpoints),
    "B5": ("reservation, mapping and early copies switched off", lambda: plans.ablation(link_here())),
    "B6": ("how the analysis grows with the trace", growth.run),
    "B9": ("cost of recording and of following a plan", overhead.recording),
    "C3m": ("recorded iterations on a modelled GPU: lru, plan, what the plan foresaw", modelled.run),
    "V2": ("microbatches in Harmony's order beside the ordinary loop", harmony.run),
    "V6": ("a model eight times as large as the budgets of two processes together", pipeline.run),
    "V7": ("four small GPUs behind one switch: Harmony's schedules, simulated", packs.run),
    "U1": ("loops of other libraries beside a bare one", ecosystem.run),
    "U4": ("what `vtensor fit` foresees beside what a run then takes", fitting.run),
    "L1": ("batches each of another length", lengths.run),
    "L2": ("iterations that differ: experts without tokens, layers left out", lambda: unlike.run(link_here())),
    "L3": ("loops without training: inference, generation, evaluations", lambda: loops.run(link_here())),
    "L3m": ("the first of those on modelled GPUs", loops.modelled),
    "E1": ("the largest batches on modelled GPUs", devices.run),
    "G2": ("padding and unmanaged memory at the sizes of small GPUs", padding.run),
    "M1": ("real memory with a spill file", steps.spill),
}


def main() -> None:
    listing = "\n".join(f"  {name:<6} {what}" for name, (what, _) in CASES.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=f"Cases (PLAN.md says more):\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", nargs="*", help="IDs; all but traces if none is given (about three hours)")
    chosen = parser.parse_args().case or [name for name in CASES if name != "traces"]
    for unknown in set(chosen) - set(CASES):
        parser.error(f"no case {unknown!r}; choose from {', '.join(CASES)}")
    for name in chosen:
        CASES[name][1]()


if __name__ == "__main__":
    main()
