"""Benchmarks; PLAN.md says what is measured and why. Run with ``python -m benchmarks [ID ...]``."""
