"""Annealed importance sampling, certificates from unbiased weights, calibrated estimates."""
