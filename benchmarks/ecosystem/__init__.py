"""U1: the loops of other people's libraries beside a bare one, each in a process of its own.

Covers: ``loops`` and ``libraries`` (the programs), ``table`` (which is held against which), ``__main__`` (one of them,
as a process), ``run`` (all of them in pairs).
Leaves: that they stay identical and planned (``tests/programs/test_ecosystem.py``, on small models).
"""
