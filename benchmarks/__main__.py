"""``python -m benchmarks [ID ...]``: run the cases of PLAN.md, all of them by default."""

from __future__ import annotations

import argparse

from . import overhead, steps

CASES = {
    "O": ("O1 and O2: cost of one operation and one allocation", overhead.run),
    "S1": ("a budget above the peak", steps.slack),
    "S2": ("the reactive policy below the peak", steps.reactive),
    "S3": ("torch.utils.checkpoint beside vtensor", steps.peers),
    "S4": ("other reactive policies at half of the peak", steps.policies),
    "M1": ("real memory with a spill file", steps.spill),
}


def main() -> None:
    listing = "\n".join(f"  {name:<4} {what}" for name, (what, _) in CASES.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=f"Cases (PLAN.md says more):\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", nargs="*", help="IDs; all if none is given")
    chosen = parser.parse_args().case or list(CASES)
    for unknown in set(chosen) - set(CASES):
        parser.error(f"no case {unknown!r}; choose from {', '.join(CASES)}")
    for name in chosen:
        CASES[name][1]()


if __name__ == "__main__":
    main()
