"""MNIST digits (LeCun, Cortes, Burges): the original four idx files, checked, never a substitute.

Looked for in the folder given, else in `$TIGHTZ_DATA/mnist`, else downloaded once (pooch).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import MissingExtraError, ModelError, TightzError
from tightz.models.formats.text_files import FilePath, file_name, read_bytes

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"

_ARCHIVE_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}

_CONTENT_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


class Mnist(NamedTuple):
    """images (N, 28, 28) uint8, 0 paper to 255 ink; labels (N,) uint8."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def probabilities(self) -> NDArray[np.float32]:
        """(N, 784) grey values as the chance that a pixel is on."""
        return self.images.reshape(len(self.images), -1).astype(np.float32) / np.float32(255.0)


def load_mnist(folder: FilePath | None = None, *, test: bool = False) -> Mnist:
    """The 60,000 training digits, or the 10,000 test digits.

    `folder` holds the idx files, packed (.gz) or not. Without it `$TIGHTZ_DATA/mnist` is used if
    that variable is set, otherwise the files are downloaded into the user's cache. The content is
    compared with the original's md5 in every case.
    """
    part = "t10k" if test else "train"
    images, labels = (_content(f"{part}-{kind}", folder) for kind in _KINDS)
    return Mnist(read_idx(images, f"{part} images"), read_idx(labels, f"{part} labels"))


_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_idx(content: bytes, label: str) -> NDArray[np.uint8]:
    """An idx array of bytes: 0, 0, 8, rank, then the lengths as big-endian 32-bit integers."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ModelError(f"{label}: not an idx file of bytes (it starts with {content[:4]!r})")
    rank = content[3]
    if len(content) < 4 + 4 * rank:
        raise ModelError(f"{label}: the idx header ends early, after {len(content)} bytes")
    shape = np.frombuffer(content, dtype=">u4", count=rank, offset=4).astype(np.int64)
    data = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank)
    if data.size != int(np.prod(shape)):
        raise ModelError(
            f"{label}: {data.size} entries; its header {tuple(shape.tolist())} needs "
            f"{int(np.prod(shape))}"
        )
    return data.reshape(shape)


def _content(name: str, folder: FilePath | None) -> bytes:
    """The unpacked bytes of one file, identical to the original's."""
    place = os.environ.get("TIGHTZ_DATA") if folder is None else None
    if folder is not None or place:
        source = _find(
            name, Path(file_name(folder)) if folder is not None else Path(place or "") / "mnist"
        )
    else:
        source = _download(name)
    content = read_bytes(source)
    if source.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ModelError(f"{source}: damaged gzip file ({error})") from error
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != _CONTENT_MD5[name]:
        raise ModelError(
            f"{source}: md5 {md5} of the content; the original {name} has {_CONTENT_MD5[name]}. "
            "Fetch the original file again"
        )
    return content


def _find(name: str, folder: Path) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise ModelError(
        f"{folder} holds neither {name}.gz nor {name}; put the four MNIST files there, or unset "
        "TIGHTZ_DATA and pass no folder to download them"
    )


def _download(name: str) -> Path:
    try:
        import pooch
    except ImportError as error:
        raise MissingExtraError(
            "MNIST is not here (TIGHTZ_DATA is unset) and downloading it needs pooch: "
            "pip install 'tightz[data]'"
        ) from error
    try:
        path = pooch.retrieve(
            f"{MIRROR}{name}.gz",
            known_hash=f"md5:{_ARCHIVE_MD5[name]}",
            fname=f"{name}.gz",
            path=pooch.os_cache("tightz") / "mnist",
        )
    except Exception as error:  # requests and urllib raise many kinds; ValueError: wrong md5
        raise TightzError(
            f"{MIRROR}{name}.gz could not be downloaded ({error}); set TIGHTZ_DATA to a folder "
            "with mnist/ in it, or pass the folder that holds the idx files"
        ) from error
    return Path(path)
