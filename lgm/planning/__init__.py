"""Plans that copy.

``planner`` takes all the steps before it in order; ``relief`` makes room before a rush; ``oversize`` leaves out what an
operation needs beyond the budget, so that the rest can be planned.
"""
