"""The core through its bindings: parts, engines, faults, the modelled GPU; and what is broken is noticed (kernels/)."""
