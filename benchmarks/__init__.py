"""Figures we hold ourselves to. Each module prints its own; `python -m benchmarks NAME` picks."""
