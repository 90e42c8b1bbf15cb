"""Deterministic lower bounds on RBM partition functions by summing out a layer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from tightz.families import MeanField
from tightz.families.layer import LayerMeanField, layer_mean_field
from tightz.families.layer.ascent import LayerProblem
from tightz.models import rbm
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections import Coset

FILES = [  # name, target, leaves, what is known
    ("rbm_mnist_tiny_15.npz", 212.0, (1, 8), "exact 216.0615441, mean field 182"),
    ("rbm_mnist_CD25_500_salakhutdinov.npz", 443.0, (1, 4), "AIS 451.28, mean field 437.46"),
]


def main() -> None:
    folder = os.environ.get("TIGHTZ_DATA")
    if folder is None:
        print("set TIGHTZ_DATA to the data folder (rbm/*.npz)")
        return
    for name, target, leaf_counts, known in FILES:
        data = np.load(Path(folder) / "rbm" / name)
        w, b, c = (data[key].astype(float) for key in ("W", "visible_bias", "hidden_bias"))
        model = rbm(w if w.shape == (b.size, c.size) else w.T, b.ravel(), c.ravel())
        poly = SpinPolynomial.from_factor_graph(model)
        print(f"{name}: {b.size} x {c.size} ({known})")
        start = time.perf_counter()
        plain = MeanField(restarts=8).project(Coset.build(poly), np.random.default_rng(0))
        seconds = time.perf_counter() - start
        print(f"  mean field, best of 8          {plain.log_gamma:12.6f}  {seconds:6.1f} s")
        for label, summed in (("hidden", np.arange(b.size, poly.n)), ("visible", range(b.size))):
            result = layer_mean_field(model, LayerMeanField(summed=list(summed)), seed=0)
            print(
                f"  {label:<8}layer summed, one q    {result.log_z:12.6f}  {result.seconds:6.1f} s"
            )
        for leaves in leaf_counts:
            result = layer_mean_field(model, LayerMeanField(leaves=leaves), seed=0)
            print(
                f"  better layer, {leaves} leaves         {result.log_z:12.6f}  "
                f"{result.seconds:6.1f} s   (target {target:g})"
            )
        problem = LayerProblem.build(poly, result.summed)
        start = time.perf_counter()
        value, _, _ = problem.lower_bound(result.means)
        seconds = time.perf_counter() - start
        print(f"  rigorous evaluator, once       {value:12.6f}  {seconds:6.2f} s")


if __name__ == "__main__":
    main()
