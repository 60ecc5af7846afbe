"""Whole programs, bit for bit: in many forms, with and without plans, on the host and on the late device."""
