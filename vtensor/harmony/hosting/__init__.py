"""Weights and optimizer states that stay in the host's memory, where they are updated.

Rooms: ``host_memory`` (of one process, or shared by those of a machine), ``neighbours`` (who these are, and who
updates what), ``hosted`` (the updates).
"""
