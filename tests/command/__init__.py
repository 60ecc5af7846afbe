"""The command vtensor (vtensor/command)."""
