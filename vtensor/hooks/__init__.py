"""What is put in the place of torch's attributes while a session lasts, and taken away again (``patches``).

``doors`` are where Python gives addresses away, ``compiled`` are graphs that write unseen, ``foreach`` cuts operations
on many tensors, ``passes`` tells of backward passes, ``strict`` names what a kernel that nobody sees was given.
"""
