"""The streams of the main job. Each is a function (working, clock) that yields findings.

A stream asks the working model for what it needs, says nothing where it does not apply, and looks
at the clock between findings. To add one: a file here and an entry in `interval/portfolio.py`.
"""
