"""Which physical chunk each piece has.

Another from layer to layer (``mapping``), or one for all its life (``seats``: on a GPU mapping is dear).
"""
