"""Where iterations end, and the process that makes plans (vtensor/planning)."""
