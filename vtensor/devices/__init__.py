"""Starting and stopping on each device (``port``): this processor (``cpu``), an NVIDIA GPU (``gpu``, CuPy's ``pools``).

``surroundings`` says what kind of place a GPU stands in; ``math_library`` is a race of plain PyTorch on a processor.
"""
