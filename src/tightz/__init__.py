"""tightz: certified, ever-narrowing intervals on log Z of discrete graphical models.

Names load on first use, so that importing the package (and `tightz --help`) stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tightz import errors as errors
from tightz.runtime.interrupts import loading
from tightz.shown import draw_html_by
from tightz.version import __version__ as __version__

_HOME = {
    "FactorGraph": "tightz.models",
    "ising": "tightz.models",
    "ising_grid": "tightz.models",
    "rbm": "tightz.models",
    "potts": "tightz.models.builders",
    "potts_grid": "tightz.models.builders",
    "ising_lattice": "tightz.models.ensembles",
    "ising_triangular": "tightz.models.ensembles",
    "random_regular": "tightz.models.ensembles",
    "sherrington_kirkpatrick": "tightz.models.ensembles",
    "hopfield": "tightz.models.ensembles",
    "PlusMinus": "tightz.models.ensembles",
    "Normal": "tightz.models.ensembles",
    "noisy_or": "tightz.models.large_scopes",
    "read": "tightz.models.formats",
    "write": "tightz.models.formats",
    "from_ising": "tightz.models.formats.quadratic",
    "from_qubo": "tightz.models.formats.quadratic",
    "from_dimod": "tightz.models.bridges",
    "from_networkx": "tightz.models.bridges",
    "from_pgmpy": "tightz.models.bridges",
    "to_pgmpy": "tightz.models.bridges",
    "from_pyagrum": "tightz.models.bridges",
    "from_sklearn_rbm": "tightz.models.bridges",
    "from_state_dict": "tightz.models.bridges",
    "to_ising": "tightz.models.formats.quadratic",
    "to_qubo": "tightz.models.formats.quadratic",
    "train_rbm": "tightz.models.train_rbm",
    "Training": "tightz.models.train_rbm",
    "load_mnist": "tightz.models.mnist",
    "log_partition": "tightz.interval.log_partition",
    "query": "tightz.interval.query",
    "free_energy": "tightz.interval.free_energy",
    "log_likelihood": "tightz.interval.likelihood",
    "sweep": "tightz.interval.sweep",
    "mean_field": "tightz.paper.mean_field",
    "mfrp": "tightz.paper.estimate",
    "estimate": "tightz.paper.estimate",
    "Projections": "tightz.paper.setup",
    "wish": "tightz.paper.wish",
    "theorem_run": "tightz.paper.theorem_run",
    "theorem_forecast": "tightz.paper.theorem_run",
    "required_trials": "tightz.paper.theorems",
    "coset_sum": "tightz.paper.coset_sum",
    "exact": "tightz.elimination.exact",
    "upper_bound": "tightz.uppers.upper_bound",
    "MiniBucket": "tightz.uppers.mini_bucket",
    "Quadratic": "tightz.uppers.quadratic",
    "TreeReweighted": "tightz.uppers.tree_reweighted",
    "ais": "tightz.sampling.ais",
    "sample": "tightz.sampling.ancestral",
    "bethe": "tightz.propagation",
    "Splitting": "tightz.splitting",
    "split": "tightz.splitting",
    "ground_state": "tightz.interval.ground_state",
    "Search": "tightz.search.ground_state",
    "report": "tightz.reports",
    "MeanField": "tightz.families",
    "StructuredMeanField": "tightz.families",
    "PointMass": "tightz.families",
    "BlockMeanField": "tightz.families.block",
    "LayerMeanField": "tightz.families.layer",
    "AnnealedMeanField": "tightz.search.annealing",
    "ExactPointMass": "tightz.search.exact_mpe",
    "DenseParity": "tightz.projections",
    "SparseParity": "tightz.projections",
    "FirstColumns": "tightz.projections",
    "Reliability": "tightz.projections",
    "Bound": "tightz.bounds",
    "Proof": "tightz.bounds",
    "Side": "tightz.bounds",
    "TightzError": "tightz.errors",
}

_ANSWERS = ("log_partition", "query", "free_energy", "ground_state", "ais", "split")
"""What returns an answer when Ctrl-C ends it."""

__all__ = sorted([*_HOME, "__version__", "errors"])

if TYPE_CHECKING:
    from tightz.bounds import Bound as Bound
    from tightz.bounds import Proof as Proof
    from tightz.bounds import Side as Side
    from tightz.elimination.exact import exact as exact
    from tightz.errors import TightzError as TightzError
    from tightz.families import MeanField as MeanField
    from tightz.families import PointMass as PointMass
    from tightz.families import StructuredMeanField as StructuredMeanField
    from tightz.families.block import BlockMeanField as BlockMeanField
    from tightz.families.layer import LayerMeanField as LayerMeanField
    from tightz.interval.free_energy import free_energy as free_energy
    from tightz.interval.ground_state import ground_state as ground_state
    from tightz.interval.likelihood import log_likelihood as log_likelihood
    from tightz.interval.log_partition import log_partition as log_partition
    from tightz.interval.query import query as query
    from tightz.interval.sweep import sweep as sweep
    from tightz.models import FactorGraph as FactorGraph
    from tightz.models import ising as ising
    from tightz.models import ising_grid as ising_grid
    from tightz.models import rbm as rbm
    from tightz.models.bridges import from_dimod as from_dimod
    from tightz.models.bridges import from_networkx as from_networkx
    from tightz.models.bridges import from_pgmpy as from_pgmpy
    from tightz.models.bridges import from_pyagrum as from_pyagrum
    from tightz.models.bridges import from_sklearn_rbm as from_sklearn_rbm
    from tightz.models.bridges import from_state_dict as from_state_dict
    from tightz.models.bridges import to_pgmpy as to_pgmpy
    from tightz.models.builders import potts as potts
    from tightz.models.builders import potts_grid as potts_grid
    from tightz.models.ensembles import Normal as Normal
    from tightz.models.ensembles import PlusMinus as PlusMinus
    from tightz.models.ensembles import hopfield as hopfield
    from tightz.models.ensembles import ising_lattice as ising_lattice
    from tightz.models.ensembles import ising_triangular as ising_triangular
    from tightz.models.ensembles import random_regular as random_regular
    from tightz.models.ensembles import sherrington_kirkpatrick as sherrington_kirkpatrick
    from tightz.models.formats import read as read
    from tightz.models.formats import write as write
    from tightz.models.formats.quadratic import from_ising as from_ising
    from tightz.models.formats.quadratic import from_qubo as from_qubo
    from tightz.models.formats.quadratic import to_ising as to_ising
    from tightz.models.formats.quadratic import to_qubo as to_qubo
    from tightz.models.large_scopes import noisy_or as noisy_or
    from tightz.models.mnist import load_mnist as load_mnist
    from tightz.models.train_rbm import Training as Training
    from tightz.models.train_rbm import train_rbm as train_rbm
    from tightz.paper.coset_sum import coset_sum as coset_sum
    from tightz.paper.estimate import estimate as estimate
    from tightz.paper.estimate import mfrp as mfrp
    from tightz.paper.mean_field import mean_field as mean_field
    from tightz.paper.setup import Projections as Projections
    from tightz.paper.theorem_run import theorem_forecast as theorem_forecast
    from tightz.paper.theorem_run import theorem_run as theorem_run
    from tightz.paper.theorems import required_trials as required_trials
    from tightz.paper.wish import wish as wish
    from tightz.projections import DenseParity as DenseParity
    from tightz.projections import FirstColumns as FirstColumns
    from tightz.projections import Reliability as Reliability
    from tightz.projections import SparseParity as SparseParity
    from tightz.propagation import bethe as bethe
    from tightz.reports import report as report
    from tightz.sampling.ais import ais as ais
    from tightz.sampling.ancestral import sample as sample
    from tightz.search.annealing import AnnealedMeanField as AnnealedMeanField
    from tightz.search.exact_mpe import ExactPointMass as ExactPointMass
    from tightz.search.ground_state import Search as Search
    from tightz.splitting import Splitting as Splitting
    from tightz.splitting import split as split
    from tightz.uppers.mini_bucket import MiniBucket as MiniBucket
    from tightz.uppers.quadratic import Quadratic as Quadratic
    from tightz.uppers.tree_reweighted import TreeReweighted as TreeReweighted
    from tightz.uppers.upper_bound import upper_bound as upper_bound


def _html(thing: Any) -> str:
    from tightz.reports.notebook import html

    return html(thing)


draw_html_by(_html)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tightz' has no attribute {name!r}")
    with loading(answers=name in _ANSWERS):
        return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
