"""The judge: decides from explicit evidence whether a number about log Z may be called proven.

Makers of bounds (families, mini-buckets, elimination, the splitting tree) hand in evidence: a q, a
list of disjoint parts, tables that sum to the model. The judge evaluates it afresh in plain numpy,
from the model's own tables, sharing no code with the maker and no compiled kernel; what it returns
has the rounding of its own sums taken outward. `tests/test_judge.py` keeps the separation true.
"""

from tightz.judge.claims import Audited, LargestEntries, StatesEvidence
from tightz.judge.products import ProductEvidence
from tightz.judge.verdict import Evidence, RefutedError, Verdict

__all__ = [
    "Audited",
    "Evidence",
    "LargestEntries",
    "ProductEvidence",
    "RefutedError",
    "StatesEvidence",
    "Verdict",
]
