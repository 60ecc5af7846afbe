"""Training in the order of packs (vtensor/harmony)."""
