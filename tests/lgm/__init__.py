"""The planner, where there is nothing but NumPy (lgm/)."""
