"""The command ``vtensor``: its arguments (``cli``), what each of its commands does (``commands``).

``launcher`` runs a script under a budget, ``farewell`` says how it went, ``fit`` runs some iterations of one for
``vtensor fit``, ``doctor`` says what is here and what is missing. ``writing``: files at the end of a run.
"""
