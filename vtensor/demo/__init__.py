"""``vtensor demo``: two real models at a fraction of their peak, measured against plain PyTorch.

``workloads`` builds the models and their data, ``worker`` trains one of them in a process of its own (plain or under a
budget), ``processes`` has such processes take steps in turns, ``show`` draws the progress and the closing table.
Benchmarks have more of the workloads run in the same way.
"""

from __future__ import annotations

from .show import demo

__all__ = ["demo"]
