"""What leaves without a copy, as it can be recomputed.

``recompute`` says what, from what, and what is cheaper at a given price; ``rewrite`` writes the trace as it is then;
``mix`` finds what to copy and what to recompute; ``only`` plans without any copy.
"""
