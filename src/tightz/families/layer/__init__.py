"""Sum out a layer: exact over an independent set of spins, mean field over the others."""

from tightz.families.layer.family import (
    LayerMeanField,
    LayerResult,
    independent_sets,
    layer_mean_field,
)

__all__ = [
    "LayerMeanField",
    "LayerResult",
    "independent_sets",
    "layer_mean_field",
]
