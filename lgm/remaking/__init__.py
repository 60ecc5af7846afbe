"""What leaves without a copy, as it can be made again.

``recompute`` says what, from what, and what is cheaper at a given price; ``rewrite`` writes the trace as it is then;
``mix`` finds what to copy and what to make again; ``only`` plans without any copy.
"""
