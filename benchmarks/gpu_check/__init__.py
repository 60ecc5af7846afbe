"""``make gpu-check``: everything that needs a GPU, the most valuable first, in calls of at most ten minutes.

Read ``__main__`` first (the order). ``models`` -> ``ways`` (what people use today) -> ``training`` (one model trained
one way) -> ``compare`` (rows at the same bytes); ``costs`` (mapping, copying, packing); ``kept`` (what earlier calls
found).
"""
