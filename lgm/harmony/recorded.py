"""Layers read off the trace of an iteration.

Covers: where layers begin, what each takes for one sample. Leaves: where the chain of the forward pass is cut
(``checkpoints.chain``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..checkpoints.chain import backward_at, even_blocks, find_chain
from ..errors import LgmError
from ..records.limits import are_sizes
from ..records.model import Floats, Ints, Trace
from ..records.rows import nominal
from .profile import Profile

__all__ = ["Recorded", "profile_of"]


@dataclass(frozen=True, slots=True)
class Recorded(Profile):
    """Times and bytes grow with the number of samples; those of weights do not."""

    forward_seconds: Floats
    """[n] Of one sample."""
    backward_seconds: Floats
    """[n] Of one sample, without running forward again."""
    update: Floats
    weights: Floats
    states: Floats
    inputs: Floats
    """[n] Bytes of one sample that a layer is given."""
    leaves: Floats
    """[n] Bytes of one sample that it leaves behind for its backward."""

    def __post_init__(self) -> None:
        if not are_sizes(*(getattr(self, name) for name in self.__slots__)):
            raise LgmError("a profile is rows of as many numbers as there are layers, none of them negative")

    def forward(self, samples: int) -> Floats:
        return samples * self.forward_seconds

    def backward(self, samples: int) -> Floats:
        return samples * self.backward_seconds

    def given(self, samples: int) -> Floats:
        return samples * self.inputs

    def bytes_forward(self, first: int, stop: int, samples: int) -> float:
        """Weights; the input of this microbatch and of the next; the most that one of the layers makes."""
        most = float((self.leaves[first:stop] + self.inputs[first:stop]).max())
        return float(self.weights[first:stop].sum() + samples * (2 * self.inputs[first] + most))

    def bytes_backward(self, first: int, stop: int, samples: int) -> float:
        """Weights and gradients; all that the layers leave behind; inputs and gradients of two microbatches.

        The update of the same pack needs its states in the place of what microbatches took.
        """
        weights, states = (float(row[first:stop].sum()) for row in (self.weights, self.states))
        handed = float(self.inputs[stop]) if stop < len(self) else 0.0
        work = samples * (float(self.leaves[first:stop].sum()) + 2 * float(self.inputs[first]) + 2 * handed)
        return 2 * weights + max(work, states)


def profile_of(trace: Trace, samples: int, layers: int = 32) -> Recorded:
    """Of a recorded iteration of so many samples, in about so many layers of the same size.

    Weights are tensors that last and are read forward: each is its first reader's. States are those that only the
    optimizer uses, divided as weights are.

    Raises
    ------
    LgmError
        If the trace has no forward and backward pass.
    """
    if samples < 1 or layers < 1:
        raise LgmError("samples and layers must be at least 1")
    chain = find_chain(trace)
    blocks = even_blocks(chain, layers)
    edges = np.append(chain.rows[blocks], chain.end)
    begin = nominal(trace)
    at = backward_at(trace, chain, blocks)[: chain.stop - chain.end]
    backward = np.bincount(at, np.diff(begin)[chain.end : chain.stop], minlength=len(blocks))
    weights, states = _lasting(trace, chain.end, edges)
    share = weights / max(weights.sum(), 1.0)
    last = np.append(blocks[1:], len(chain.rows)) - 1
    given = np.concatenate([[chain.across[0]], chain.across[last[:-1]]])
    return Recorded(
        forward_seconds=np.diff(begin[edges]) / samples,
        backward_seconds=backward / samples,
        update=share * (begin[-1] - begin[chain.stop]),
        weights=weights,
        states=share * states,
        inputs=given / samples,
        leaves=np.add.reduceat(chain.leaves, blocks) / samples,
    )


def _lasting(trace: Trace, backward: int, edges: Ints) -> tuple[Floats, float]:
    """[n] Bytes of weights, and bytes of what only the optimizer uses."""
    lasts = trace.lasting
    first = np.full(trace.tensors, trace.operations)
    np.minimum.at(first, trace.use_tensor, trace.use_op)
    early = lasts & (first < backward)
    layer = np.clip(np.searchsorted(edges, first[early], side="right") - 1, 0, len(edges) - 2)
    weights = np.bincount(layer, trace.tensor_bytes[early], minlength=len(edges) - 1)
    late = lasts & (first >= backward) & (first < trace.operations)
    return np.asarray(weights, dtype=np.float64), float(trace.tensor_bytes[late].sum())
