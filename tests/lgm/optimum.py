"""The exact optimum of a cover problem, by an integer program (SciPy's HiGHS) or by trying everything. Test oracle
only."""

from __future__ import annotations

import itertools

import numpy as np

from lgm.choosing.problem import Cover


def matrix(problem: Cover) -> np.ndarray:
    rows = np.zeros((problem.n, len(problem.start)))
    for g, (a, b) in enumerate(zip(problem.start, problem.stop, strict=True)):
        for row in range(a, b):
            rows[row % problem.n, g] += 1
    return rows


def by_integer_program(problem: Cover) -> float:
    return _solve(problem, integral=True)


def within(problem: Cover, total: float, allowed: float) -> bool:
    """Whether `total` is at most `allowed` times the optimum.

    The relaxation is a lower bound, found in a tenth of the integer program's time, and settles nearly every case.
    """
    least = _solve(problem, integral=False)
    if (problem.price == 1).all():
        least = float(np.ceil(least - 1e-6))
    slack = 1e-6
    return total <= least * allowed + slack or total <= by_integer_program(problem) * allowed + slack


def _solve(problem: Cover, integral: bool) -> float:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if not len(problem.start):
        return 0.0
    result = milp(
        problem.price,
        constraints=LinearConstraint(csr_array(matrix(problem)), lb=problem.demand),
        integrality=np.full(len(problem.start), int(integral)),
        bounds=Bounds(0, problem.limit),
    )
    assert result.success, result.message
    return float(result.fun)


def by_trying(problem: Cover) -> float:
    rows = matrix(problem)
    best = np.inf
    for used in itertools.product(*(range(limit + 1) for limit in problem.limit)):
        if (rows @ np.array(used) >= problem.demand).all():
            best = min(best, float((problem.price * np.array(used)).sum()))
    return best
