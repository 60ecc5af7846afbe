"""Buffers of layers, which forwards read and write beside parameters: by turns, and once more in backward.

Rooms: ``memories`` (buffers that share memory, and whether it was written), ``snapshots`` (modules that change
theirs), ``writes`` (by whom nobody saw), ``weights`` (that are written as buffers are), ``copies`` (as a layer's first
run found them, for its second), ``kept`` (as its backward needs them).
"""
