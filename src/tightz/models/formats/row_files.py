"""Files of rows of observations: arrays, tables of text, JSON lines, UAI evidence, idx images."""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.formats.evidence import members
from tightz.models.formats.text_files import FilePath, Words, file_name, read_bytes
from tightz.models.mnist import read_idx
from tightz.models.written_rows import Cells, Records

_ENDINGS = ".npy, .npz, .csv, .tsv, .jsonl, .evid or an idx file of images"

_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def read_rows(path: FilePath, *, words: bool = False) -> NDArray | Cells | Records:
    """What a file of rows holds, by the ending of its name; `rows_of` makes observations of it.

    `words`: numbers in a table of text may be names, so that they stay text.

    .npy and .npz   one array (rows, columns); of several in an .npz the one called data
    .csv and .tsv   a line for each row; a first line that is not all numbers names the columns, an
                    empty cell is not observed
    .jsonl          a JSON object {variable: state} on each line
    .evid           UAI evidence: the number of samples, then each as `k v1 s1 ... vk sk`
    ...ubyte[.gz]   images as MNIST has them, a row each
    """
    label = file_name(path)
    name = Path(label).name.lower()
    ending = Path(name).suffix
    if ending in (".npy", ".npz"):
        return _array(path)
    if ending in _SEPARATORS:
        return _table(path, _SEPARATORS[ending], words=words)
    if ending in (".jsonl", ".ndjson"):
        return _json_lines(path)
    if "ubyte" in name or name.endswith(".idx"):
        return _images(path)
    if ending == ".evid":
        return _samples(path)
    read_bytes(path)  # where the file itself is the matter, that is said first
    raise ModelError(f"{label}: unknown ending {ending!r} for rows; expected {_ENDINGS}")


def _array(path: FilePath) -> NDArray:
    label = file_name(path)
    try:
        found = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            names = list(found.files)
            if len(names) == 1 or "data" in names:
                return np.asarray(found["data" if "data" in names else names[0]])
    except ModelError:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged file
        raise ModelError(
            f"{label} is no .npy or .npz file (or a damaged one); expected an array"
        ) from error
    raise ModelError(
        f"{label} holds the arrays {', '.join(names) or '(none)'}; expected one, or one called data"
    )


def _images(path: FilePath) -> NDArray:
    label, content = file_name(path), read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ModelError(f"{label}: damaged gzip file ({error})") from error
    images = read_idx(content, label)
    return images.reshape(len(images), -1)


def _text(path: FilePath) -> str:
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelError(
            f"byte {error.start} is no text; expected UTF-8 ({file_name(path)}, line {line})"
        ) from None


def _table(path: FilePath, separator: str, *, words: bool) -> NDArray | Cells:
    text = _text(path)
    numbers = None if words else _all_numbers(text, separator)
    if numbers is not None:
        return numbers
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    lines, places = [], []
    try:
        for cells in reader:
            if cells:
                lines.append([cell.strip() for cell in cells])
                places.append(f"{file_name(path)}, line {reader.line_num}")
    except csv.Error as error:
        raise ModelError(
            f"the table cannot be read: {error} ({file_name(path)}, line {reader.line_num})"
        ) from None
    named = bool(lines) and not all(map(_is_number, lines[0]))
    return Cells(lines[0] if named else None, lines[named:], places[named:], text=True)


def _all_numbers(text: str, separator: str) -> NDArray | None:
    """A table of numbers alone; None where a cell is empty or a word."""
    try:
        with warnings.catch_warnings():  # of a file without rows
            warnings.simplefilter("error")
            return np.loadtxt(io.StringIO(text), delimiter=separator, ndmin=2, comments=None)
    except (ValueError, UserWarning):
        return None


def _is_number(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return False
    return True


def _json_lines(path: FilePath) -> Records:
    records: list[Any] = []
    places = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        places.append(f"{file_name(path)}, line {number}")
        try:
            records.append(json.loads(line, object_pairs_hook=members))
        except (ValueError, RecursionError) as error:
            records.append(f'the line is no JSON object such as {{"rain": "yes"}}: {error}')
    return Records(records, places, text=True)


def _samples(path: FilePath) -> Records:
    """Samples of UAI evidence.

    `k v1 s1 ... vk sk` is one without a count of samples. Where the words fit both readings, it is
    samples if the first line holds the count alone and each further one a sample.
    """
    words = Words(path)
    counts = [words.count(k, "a number of UAI evidence") for k in range(len(words))]
    several = [[]] if counts == [0] else _split(counts)  # 0: one sample, of nothing
    if several and len(counts) == 1 + 2 * counts[0]:
        lines = [line.split() for line in _text(path).split("\n") if line.strip()]
        if len(lines[0]) != 1 or [len(line) for line in lines[1:]] != [
            1 + 2 * len(sample) for sample in several
        ]:
            several = None
    if several is None:
        if counts and len(counts) == 1 + 2 * counts[0]:
            several = [list(zip(counts[1::2], counts[2::2], strict=True))]
        else:
            words.fail(
                "the words are neither one sample, `k v1 s1 ... vk sk`, nor their number and then "
                "each of them; expected one of these"
            )
    records = [_record(sample) for sample in several]
    places = [f"{words.label}, sample {k}" for k in range(len(records))]
    return Records(records, places, text=False)


def _split(counts: list[int]) -> list[list[tuple[int, int]]] | None:
    """The samples after their number; None where the words do not fit."""
    samples, at = [], 1
    for _ in range(counts[0] if counts else 0):
        if at >= len(counts) or at + 1 + 2 * counts[at] > len(counts):
            return None
        end = at + 1 + 2 * counts[at]
        samples.append(list(zip(counts[at + 1 : end : 2], counts[at + 2 : end : 2], strict=True)))
        at = end
    return samples if at == max(len(counts), 1) else None


def _record(sample: list[tuple[int, int]]) -> dict[int, int] | str:
    found: dict[int, int] = {}
    for v, state in sample:
        if found.setdefault(v, state) != state:
            return f"evidence puts variable {v} in state {found[v]} and in {state}; expected one"
    return found
