"""What happened: figures (``stats``), copies in torch's own profile (``profile_tracks``)."""
