"""The core through its bindings: parts, engines, faults, the modelled GPU, and that tests notice what is broken (kernels/)."""
