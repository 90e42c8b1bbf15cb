"""Every error of tightz with its text, by package; `tests/test_errors.py` runs them all."""
