"""When each copy begins, and how long a step takes then.

``schedule`` dates the copies (``moves``), ``simulate`` runs them beside the computing (``lanes`` is its state),
``settling`` goes back and forth between the two; ``prefetch`` dates copies in alone.
"""
