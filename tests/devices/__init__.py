"""What kind of place a device stands in (vtensor/devices)."""
