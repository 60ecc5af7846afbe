"""A model spread over processes: packs of layers wrapped around them, the user's own program in the first.

The first process runs each microbatch's forward and backward as ever, woven with the others. Where it comes to a layer
that lives in another process it sends an *order* there and goes on with a *promise* for the result: a tensor of which
only the layout is known. Handed to the next layer elsewhere, a promise stays one, and what it stands for goes from
process to process directly; only an operation of the first process waits for it. Backward is the same with gradients.
So nothing is cut: skips, tied weights, masks and whatever stands between layers is the program's own business, in the
first process. The others run what they are told, in the order in which it was said.

Rooms: ``look`` (what is to be known before), ``placement`` (which layer lives where), ``orders`` (what is said),
``promise`` (tensors that are elsewhere), ``ledger`` (which process has which), ``calls`` (the first process' side of a
step), ``worker`` (the others'), ``pipeline`` (the above, for a trainer). Values and tensors travel by ``..wire`` and
``..mail``; ``..whole`` has weights and states of all processes together.
"""

from __future__ import annotations

from .calls import Calls
from .look import Look
from .orders import End
from .pipeline import Pipeline
from .worker import Worker

__all__ = ["Calls", "End", "Look", "Pipeline", "Worker"]
