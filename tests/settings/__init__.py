"""What a session is asked for, and what there is for it (vtensor/settings)."""
