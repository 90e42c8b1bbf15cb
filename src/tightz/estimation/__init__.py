"""Levels, trials, aggregation, certificates, marginals and the anytime driver."""
