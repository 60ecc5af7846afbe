"""What goes between processes, and what several of them have together.

Rooms: ``wire`` (values as bytes and tensors), ``mail`` (both from one process to another), ``whole`` (weights and
states of all of them, in one), ``replicas`` (averaging gradients of processes that have all).
"""
