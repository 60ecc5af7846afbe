"""Models whose weights alone do not fit: Harmony's order of work, without taking the model apart.

With weights larger than the budget an ordinary loop over microbatches reads every weight again for each of them. Here
the layers of a model are taken in *packs*: all microbatches go through one pack before the next, and each pack's
weights are updated right after its backward. What is moved no longer grows with the number of microbatches.

Source of the order: Li, Phanishayee, Murray, Tarnawski, Kim, *Harmony: Overcoming the Hurdles of GPU Memory Capacity to
Train Massive DNN Models on Commodity Servers*, VLDB 2022, arXiv 2202.01306. What is its own here: nothing is cut. Each
microbatch runs the user's own forward and backward in a thread of its own; one runs at a time, and they change places
where a pack begins.

Rooms: ``trainer`` (what users call), ``step`` (one of its steps), ``arguments`` (what it cannot be asked for),
``layers`` (which parts of a model take turns), ``packs`` and ``packing`` (which of them together, by the budget),
``turns`` (how microbatches do), ``updates`` (each pack's when it is complete), ``microbatches`` (cutting a batch),
``generators`` (random numbers of each), ``buffers`` (what forwards read and write beside parameters), ``forwards``
(other functions in the place of layers'), ``hosting`` (updates in the host's memory), ``processes`` (what goes between
them), ``pipeline`` (layers that live in other processes), ``rehearsal`` (before they do), ``leftovers`` (of a step that
was interrupted).
"""

from __future__ import annotations

from .trainer import Harmony

__all__ = ["Harmony"]
