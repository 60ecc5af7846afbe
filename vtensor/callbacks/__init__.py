"""vtensor's figures in the loggers of other libraries.

Rooms: ``figures`` (what is told, averaged over the steps since it was told last), ``transformers`` (for its
``Trainer``), ``lightning`` (for its ``Trainer``). Each imports its library, so this file imports none of them::

    from vtensor.callbacks.transformers import add_to
    from vtensor.callbacks.lightning import VtensorCallback
"""
