"""How microbatches take turns: all of them go through one pack of layers before the next.

Rooms: ``weave`` (threads, of which one runs), ``stops`` (hooks at which they change places), ``layer_order`` (which
layers can, and in which order they run), ``between`` (what comes in order besides), ``again`` (layers that run once
more in backward), ``turns`` (all of these, for one step).
"""
