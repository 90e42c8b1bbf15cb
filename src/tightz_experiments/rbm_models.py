"""The RBMs of the table: which there are, what the paper printed, and how each one is trained."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightz.errors import ParameterError
from tightz.models.train_rbm import Training

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True)
class Column:
    """One RBM: trained here by CD-k, or the public CD25_500 weights (`public`)."""

    hidden: int
    k: int
    public: bool = False

    @property
    def name(self) -> str:
        return f"cd{self.k}-{self.hidden}" + ("-public" if self.public else "")


PAPER = {  # (hidden, k): (mean field, MFRP) as printed in the paper's table
    (100, 1): (501, 501),
    (100, 5): (348, 433),
    (100, 15): (297, 342),
    (200, 5): (203, 380),
    (200, 15): (293, 313),
    (200, 25): (279, 295),
}
PUBLIC = Column(500, 25, public=True)
COLUMNS = (*(Column(*key) for key in PAPER), PUBLIC)
PUBLIC_FILE = "rbm_mnist_CD25_500_salakhutdinov.npz"
PUBLISHED_AIS = {PUBLIC: 451.28}


@dataclass(frozen=True)
class RbmTable:
    """The paper's training (15 epochs, minibatches of 20) and the effort of each estimate.

    examples      digits used in training
    levels        MFRP's numbers of parities
    search_sweeps tempering sweeps before MFRP with our search
    temperatures  of AIS, 128 chains
    seconds       time limit of the interval (our default)
    """

    columns: tuple[Column, ...] = COLUMNS
    epochs: int = 15
    batch_size: int = 20
    examples: int = 60_000
    levels: tuple[int, ...] = (0, 1, 2, 3, 5, 7, 10, 15, 20)
    trials: int = 5
    restarts: int = 8
    search_sweeps: int = 1000
    temperatures: int = 20_000
    seconds: float = 60.0
    seed: int = 0

    def quick(self) -> RbmTable:
        """A size for a first look: a few hidden units, one epoch on a subset."""
        return replace(
            self,
            columns=(Column(6, 1), Column(8, 2)),
            epochs=1,
            examples=1000,
            levels=(0, 2),
            trials=3,
            restarts=2,
            search_sweeps=100,
            temperatures=100,
            seconds=1.0,
        )


def train_column(
    folder: Path, config: RbmTable, column: Column, mnist: str | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Train the column's RBM from its checkpoint on and save its weights.

    The seconds returned are of all epochs, also those of a run that was cut off.
    """
    from tightz.models.mnist import load_mnist
    from tightz.models.train_rbm import Epoch, train_rbm

    data = load_mnist(mnist).probabilities()[: config.examples]

    def told(epoch: Epoch) -> None:
        report(
            f"{column.name}: epoch {epoch.number}/{config.epochs}, reconstruction error "
            f"{epoch.reconstruction_error:.5f}, {epoch.seconds:.0f} s"
        )

    trained = train_rbm(
        data,
        Training(
            hidden=column.hidden, k=column.k, epochs=config.epochs, batch_size=config.batch_size
        ),
        seed=config.seed,
        checkpoint=folder / "checkpoints" / f"h{column.hidden}-k{column.k}.npz",
        on_epoch=told,
    )
    trained.save(folder / f"{column.name}.npz")
    return {
        "reconstruction_error": trained.reconstruction_error.tolist(),
        "seconds": trained.seconds,
        "processor_seconds": trained.processor_seconds,
    }


def load_column(folder: Path, column: Column) -> FactorGraph:
    """The column's RBM: the weights that `train_column` saved, or the public ones."""
    from tightz.models.formats.array_files import read_model

    return read_model(public_file() if column.public else folder / f"{column.name}.npz")


def public_file() -> Path:
    """The CD25_500 weights (R. Salakhutdinov) under TIGHTZ_DATA; they cannot be downloaded."""
    folder = os.environ.get("TIGHTZ_DATA")
    if not folder:
        raise ParameterError(
            f"the public CD25_500 column needs {PUBLIC_FILE}; set TIGHTZ_DATA to the folder whose "
            "rbm/ holds it, or leave the column out"
        )
    return Path(folder) / "rbm" / PUBLIC_FILE
