"""Exact sums of planar spin models without fields, by Pfaffians."""
