"""Models whose weights alone do not fit: Harmony's order of work, without taking the model apart.

With weights larger than the budget an ordinary loop over microbatches reads every weight again for each of them. Here
the layers of a model are taken in *packs*: all microbatches go through one pack before the next, and each pack's
weights are updated right after its backward. What is moved no longer grows with the number of microbatches.

Source of the order: Li, Phanishayee, Murray, Tarnawski, Kim, *Harmony: Overcoming the Hurdles of GPU Memory Capacity to
Train Massive DNN Models on Commodity Servers*, VLDB 2022, arXiv 2202.01306. What is its own here: nothing is cut. Each
microbatch runs the user's own forward and backward in a thread of its own; one runs at a time, and they change places
where a pack begins.

Rooms: ``trainer`` (what users call), ``arguments`` (what it cannot be asked for), ``layers`` (which parts of a model
take turns), ``packs`` (which of them together), ``weave`` (threads that take turns), ``stops`` (hooks at which they
do), ``between`` (what comes in order besides), ``snapshots`` (modules that change their buffers),
``memories`` (how that is seen), ``turns`` (these, for one step), ``updates`` (each pack's when it is complete),
``packing`` (layers in their order, by the budget),
``replicas`` (averaging gradients of several processes), ``pipeline`` (layers that live in other processes),
``rehearsal`` (before they do), ``wire`` and ``mail`` (values and tensors between processes), ``whole`` (weights and
states of all of them), ``hosted`` (updates in the host's memory), ``host_memory`` and ``neighbours`` (that memory, of
one process or all of a machine), ``microbatches`` (cutting a batch), ``generators`` (random numbers of each), ``again``
(running a layer again in backward), ``buffers`` (as its first run found them), ``kept`` (as its backward does),
``forwards`` (other functions in the place of layers').
"""

from __future__ import annotations

from .trainer import Harmony

__all__ = ["Harmony"]
