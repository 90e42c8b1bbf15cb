"""tightz: certified, ever-narrowing intervals on log Z of discrete graphical models.

Names load on first use, so that importing the package (and `tightz --help`) stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tightz.shown import draw_html_by
from tightz.version import __version__ as __version__

_HOME = {
    "FactorGraph": "tightz.models",
    "SpinPolynomial": "tightz.models",
    "ising": "tightz.models",
    "ising_grid": "tightz.models",
    "rbm": "tightz.models",
    "read_uai": "tightz.models.formats.uai",
    "read_pr": "tightz.models.formats.uai",
    "write_pr": "tightz.models.formats.uai",
    "read_mar": "tightz.models.formats.uai",
    "write_mar": "tightz.models.formats.uai",
    "write_uai": "tightz.models.formats.uai",
    "load_rbm": "tightz.models.formats.rbm_files",
    "save_rbm": "tightz.models.formats.rbm_files",
    "DenseParity": "tightz.projections",
    "SparseParity": "tightz.projections",
    "FirstColumns": "tightz.projections",
    "Reliability": "tightz.projections",
    "MeanField": "tightz.families",
    "PointMass": "tightz.families",
    "LayerMeanField": "tightz.families.layer",
    "layer_mean_field": "tightz.families.layer",
    "StructuredMeanField": "tightz.families",
    "strips": "tightz.families",
    "TreeReweighted": "tightz.uppers.tree_reweighted",
    "MiniBucket": "tightz.uppers.mini_bucket",
    "upper_bound": "tightz.uppers.upper_bound",
    "bethe": "tightz.propagation",
    "ais": "tightz.sampling.ais",
    "ground_state": "tightz.search.ground_state",
    "sample_pool": "tightz.search.pool",
    "AnnealedMeanField": "tightz.search.annealing",
    "mean_field": "tightz.paper.estimate",
    "mfrp": "tightz.paper.estimate",
    "estimate": "tightz.paper.estimate",
    "wish": "tightz.paper.wish",
    "ExactPointMass": "tightz.search.exact_mpe",
    "exact": "tightz.elimination.exact",
    "collapse": "tightz.reductions.collapse",
    "log_partition": "tightz.interval.log_partition",
    "coset_sum": "tightz.paper.coset_sum",
    "Splitting": "tightz.splitting",
    "split": "tightz.splitting",
    "read_fg": "tightz.models.formats",
    "write_fg": "tightz.models.formats",
    "read_cnf": "tightz.models.formats",
    "write_cnf": "tightz.models.formats",
    "read_bif": "tightz.models.formats",
    "read_xmlbif": "tightz.models.formats",
    "from_ising": "tightz.models.formats",
    "from_qubo": "tightz.models.formats",
    "from_dimod": "tightz.models.formats",
    "to_ising": "tightz.models.formats",
    "to_qubo": "tightz.models.formats",
    "potts": "tightz.models.potts",
    "potts_grid": "tightz.models.potts",
    "block_mean_field": "tightz.families.block",
    "BlockMeanField": "tightz.families.block",
    "MissingExtraError": "tightz.errors",
    "train_rbm": "tightz.models.train_rbm",
    "load_mnist": "tightz.models.mnist",
    "required_trials": "tightz.paper.theorems",
    "Bound": "tightz.bounds",
    "Proof": "tightz.bounds",
    "Side": "tightz.bounds",
    "TightzError": "tightz.errors",
    "ModelError": "tightz.errors",
    "UnsupportedModelError": "tightz.errors",
    "ParameterError": "tightz.errors",
    "ResourceError": "tightz.errors",
    "report": "tightz.reports",
    "ReportData": "tightz.reports",
    "Progress": "tightz.reports.progress",
    "write_bif": "tightz.models.formats",
    "write_xmlbif": "tightz.models.formats",
    "noisy_or": "tightz.models.large_scopes",
    "theorem_run": "tightz.paper.theorem_run",
    "theorem_forecast": "tightz.paper.theorem_run",
    "RunReader": "tightz.runtime.store",
    "RunStore": "tightz.runtime.store",
    "StoreError": "tightz.runtime.store",
}

__all__ = sorted([*_HOME, "__version__"])

if TYPE_CHECKING:
    from tightz.bounds import Bound as Bound
    from tightz.bounds import Proof as Proof
    from tightz.bounds import Side as Side
    from tightz.elimination.exact import exact as exact
    from tightz.errors import MissingExtraError as MissingExtraError
    from tightz.errors import ModelError as ModelError
    from tightz.errors import ParameterError as ParameterError
    from tightz.errors import ResourceError as ResourceError
    from tightz.errors import TightzError as TightzError
    from tightz.errors import UnsupportedModelError as UnsupportedModelError
    from tightz.families import MeanField as MeanField
    from tightz.families import PointMass as PointMass
    from tightz.families import StructuredMeanField as StructuredMeanField
    from tightz.families import strips as strips
    from tightz.families.block import BlockMeanField as BlockMeanField
    from tightz.families.block import block_mean_field as block_mean_field
    from tightz.families.layer import LayerMeanField as LayerMeanField
    from tightz.families.layer import layer_mean_field as layer_mean_field
    from tightz.interval.log_partition import log_partition as log_partition
    from tightz.models import FactorGraph as FactorGraph
    from tightz.models import SpinPolynomial as SpinPolynomial
    from tightz.models import ising as ising
    from tightz.models import ising_grid as ising_grid
    from tightz.models import rbm as rbm
    from tightz.models.formats import from_dimod as from_dimod
    from tightz.models.formats import from_ising as from_ising
    from tightz.models.formats import from_qubo as from_qubo
    from tightz.models.formats import read_bif as read_bif
    from tightz.models.formats import read_cnf as read_cnf
    from tightz.models.formats import read_fg as read_fg
    from tightz.models.formats import read_xmlbif as read_xmlbif
    from tightz.models.formats import to_ising as to_ising
    from tightz.models.formats import to_qubo as to_qubo
    from tightz.models.formats import write_bif as write_bif
    from tightz.models.formats import write_cnf as write_cnf
    from tightz.models.formats import write_fg as write_fg
    from tightz.models.formats import write_xmlbif as write_xmlbif
    from tightz.models.formats.rbm_files import load_rbm as load_rbm
    from tightz.models.formats.rbm_files import save_rbm as save_rbm
    from tightz.models.formats.uai import read_mar as read_mar
    from tightz.models.formats.uai import read_pr as read_pr
    from tightz.models.formats.uai import read_uai as read_uai
    from tightz.models.formats.uai import write_mar as write_mar
    from tightz.models.formats.uai import write_pr as write_pr
    from tightz.models.formats.uai import write_uai as write_uai
    from tightz.models.large_scopes import noisy_or as noisy_or
    from tightz.models.mnist import load_mnist as load_mnist
    from tightz.models.potts import potts as potts
    from tightz.models.potts import potts_grid as potts_grid
    from tightz.models.train_rbm import train_rbm as train_rbm
    from tightz.paper.coset_sum import coset_sum as coset_sum
    from tightz.paper.estimate import estimate as estimate
    from tightz.paper.estimate import mean_field as mean_field
    from tightz.paper.estimate import mfrp as mfrp
    from tightz.paper.theorem_run import theorem_forecast as theorem_forecast
    from tightz.paper.theorem_run import theorem_run as theorem_run
    from tightz.paper.theorems import required_trials as required_trials
    from tightz.paper.wish import wish as wish
    from tightz.projections import DenseParity as DenseParity
    from tightz.projections import FirstColumns as FirstColumns
    from tightz.projections import Reliability as Reliability
    from tightz.projections import SparseParity as SparseParity
    from tightz.propagation import bethe as bethe
    from tightz.reductions.collapse import collapse as collapse
    from tightz.reports import ReportData as ReportData
    from tightz.reports import report as report
    from tightz.reports.progress import Progress as Progress
    from tightz.runtime.store import RunReader as RunReader
    from tightz.runtime.store import RunStore as RunStore
    from tightz.runtime.store import StoreError as StoreError
    from tightz.sampling.ais import ais as ais
    from tightz.search.annealing import AnnealedMeanField as AnnealedMeanField
    from tightz.search.exact_mpe import ExactPointMass as ExactPointMass
    from tightz.search.ground_state import ground_state as ground_state
    from tightz.search.pool import sample_pool as sample_pool
    from tightz.splitting import Splitting as Splitting
    from tightz.splitting import split as split
    from tightz.uppers.mini_bucket import MiniBucket as MiniBucket
    from tightz.uppers.tree_reweighted import TreeReweighted as TreeReweighted
    from tightz.uppers.upper_bound import upper_bound as upper_bound


def _html(thing: Any) -> str:
    from tightz.reports.notebook import html

    return html(thing)


draw_html_by(_html)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tightz' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
