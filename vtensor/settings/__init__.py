"""What a session is asked for, and what this machine has for it.

``options`` are the arguments there are, ``sizes`` how people write them, ``config`` the numbers they become,
``environment`` switches from outside. ``which_device`` is asked for; ``available`` is how much memory there is, of
which a container or a job may use what its ``groups`` allow.
"""
