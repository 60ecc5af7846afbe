"""Which physical chunk each piece has.

Another from layer to layer (``mapping``), or one for all its life (``seats``: on a GPU mapping is dear), while it is
there (``stays``). There copies are asked for when their chunks are free (``asking``). What all that means for who
follows a plan is in ``orders``.
"""
