"""Files: one `read` and one `write`, by the ending of the name.

A format is a module with its `Format` and an entry in `FORMATS`. Models of QUBO and Ising
dictionaries come and go without a file (`quadratic`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tightz.errors import ModelError, ParameterError
from tightz.models.formats import array_files, bif, cnf, fg, uai, uai_results
from tightz.models.formats.evidence import Evidence
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, file_name, read_bytes

FORMATS = (
    uai.FORMAT,
    fg.FORMAT,
    cnf.FORMAT,
    bif.BIF,
    bif.XMLBIF,
    array_files.FORMAT,
    uai_results.PR,
    uai_results.MAR,
)


def read(
    path: FilePath, evidence: Evidence | None = None, *, format: str | None = None, **options: Any
) -> Any:
    """What a file holds, told by the ending of its name: a model, or a result of the UAI contests.

    Models: .uai, .fg (libDAI), .cnf (DIMACS), .bif, .xml (XMLBIF), and .npz, .mat or .h5 with
    the weights of an RBM or the arrays of any model. Results: .PR gives log Z, .MAR one vector of
    probabilities per variable.

    evidence   a UAI evidence file, or {variable: state}: numbers, or names in .bif and .xml
    format     the ending to read it by, where the name says another or nothing: "uai"
    options    of the format: `transposed` for RBM weights (True: W is (hidden, visible)), `ignore`
               for names of arrays that are no part of the model (others that are not understood
               are refused)
    """
    kind = _chosen(path, format, reading=True)
    if evidence is not None:
        options["evidence"] = evidence
    return kind.call(kind.read, path, **options)


def write(model: Any, path: FilePath, *, format: str | None = None, **options: Any) -> Any:
    """Write a model (to .PR log Z, to .MAR marginals), atomically, as the ending of `path` says.

    model      a model, or the path of a file, which is then turned into the other format
    format     the ending to write it by, where the name says another or nothing
    options    of the format: .uai takes `evidence_path` (else a model with evidence is refused),
               `rescale` and `wide` for tables beyond doubles, and returns the log constant left
               out; .bif and .xml take `names` and `states`, in place of the model's own
    """
    kind = _chosen(path, format, reading=False)
    if isinstance(model, str | os.PathLike):
        model = read(model)
    return kind.call(kind.write, model, path, **options)


def _chosen(path: FilePath, format: str | None, *, reading: bool) -> Format:
    known = {ending.lower(): kind for kind in FORMATS for ending in kind.endings}
    listed = ", ".join(f".{ending}" for kind in FORMATS for ending in kind.endings)
    if format is not None:
        if not isinstance(format, str) or format.lower().lstrip(".") not in known:
            raise ParameterError(f"format is {format!r}; expected one of {listed}")
        return known[format.lower().lstrip(".")]
    label = file_name(path)
    ending = Path(label).suffix
    if ending[1:].lower() in known:
        return known[ending[1:].lower()]
    if reading:
        read_bytes(path)  # where the file itself is the matter, that is said first
    raise ModelError(
        f"{label}: unknown ending {ending!r}; expected {listed}, or say what it is: format='uai'"
    )
