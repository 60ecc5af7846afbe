"""What is put in the place of torch's attributes (vtensor/hooks)."""
