"""What happened: figures (``stats``), a page (``page``), copies in torch's own profile (``profile_tracks``)."""
