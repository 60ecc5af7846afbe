"""What happened, for people (vtensor/reports)."""
