"""Figures where the losses are (vtensor/callbacks), and the examples."""
