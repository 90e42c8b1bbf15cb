"""Structured mean field: clusters of bounded treewidth, exact inside, mean field between."""

from tightz.families.structured.family import (
    StructuredMeanField,
    StructuredProjection,
)

__all__ = [
    "StructuredMeanField",
    "StructuredProjection",
]
