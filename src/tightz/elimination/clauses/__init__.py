"""Weighted model counting: exact sums of models whose tables are mostly zeros and ones."""
