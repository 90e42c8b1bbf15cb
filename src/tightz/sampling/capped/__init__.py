"""Importance weights that a mini-bucket bound caps: both ends of the confident interval."""
