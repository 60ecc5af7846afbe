"""What is put in the place of torch's attributes while a session lasts, and taken away again (``patches``).

``doors`` are where Python gives addresses away, ``backwards`` those written in Python, ``storages`` what is done past
torch's operations (``scripted``: which tensors TorchScript saves), ``compiled`` graphs that write unseen, ``kernels``
those in the place of torch's own, ``collectives`` what other threads use after the call. ``signals`` keeps our fault
handler on top. ``foreach`` cuts operations on many tensors, ``passes`` tells of backward passes, ``strict`` names what
a kernel that nobody sees was given. ``imports``: some are of modules that the program may import later.
"""
