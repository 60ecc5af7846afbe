"""Who is away when: the least price that keeps every operation within the budget.

``cost`` prices the gaps, ``selection`` says how much must be away at each operation, and so which ``problem`` is to be
solved; ``choice`` solves it, beginning with a ``sweep``, which ``residual`` improves to the optimum.
"""
