"""Model files and dictionaries of other programs: .fg, DIMACS CNF, BIF, XMLBIF, QUBO, Ising."""

from tightz.models.formats.bif import read_bif, read_xmlbif
from tightz.models.formats.bif_writer import write_bif, write_xmlbif
from tightz.models.formats.cnf import read_cnf, write_cnf
from tightz.models.formats.fg import read_fg, write_fg
from tightz.models.formats.quadratic import from_dimod, from_ising, from_qubo, to_ising, to_qubo

__all__ = [
    "from_dimod",
    "from_ising",
    "from_qubo",
    "read_bif",
    "read_cnf",
    "read_fg",
    "read_xmlbif",
    "to_ising",
    "to_qubo",
    "write_bif",
    "write_cnf",
    "write_fg",
    "write_xmlbif",
]
