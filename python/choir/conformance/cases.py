"""The inputs: matrices of scores from the routing vectors (vectors/README.md), each with several k."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

MATRICES = ("random", "skewed", "few", "padded", "equal")
FORMAT, VERSIONS = "choir-routing-vectors", ("2",)
DTYPES = {"U8": np.uint8, "I32": np.int32, "F32": np.float32, "F64": np.float64}
FIELDS = {  # type and number of dimensions; 2: [n,e], 1: [n], 0: a number
    **dict.fromkeys(("scores", "logits", "cotangent", "gates", "dscores", "daux"), (np.float32, 2)),
    **{"valid": (np.uint8, 1), "tokens": (np.int32, 1), "taken": (np.uint8, 2), "aux_loss": (np.float64, 0)},
}


def folder() -> pathlib.Path:
    """The folder of the vectors: in an installed package, or next to it in the source tree."""
    package = pathlib.Path(__file__).resolve().parents[1]
    places = [package / "vectors", package.parents[1] / "vectors"]
    found = next((place for place in places if (place / "topk.safetensors").exists()), None)
    if found is None:
        raise FileNotFoundError(f"no routing vectors (topk.safetensors) in {places[0]} or {places[1]}")
    return found


class VectorError(ValueError):
    """An invalid file of vectors: the message names the file, the vector and the field."""


@dataclasses.dataclass(frozen=True)
class Vectors:
    """A file of routing vectors."""

    path: pathlib.Path
    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]

    def fault(self, where: str, what: str) -> VectorError:
        return VectorError(f"{self.path}: {where}: {what}")

    def text(self, key: str) -> str:
        if not isinstance(self.metadata.get(key), str):
            raise self.fault("__metadata__", f"there is no text {key}")
        return self.metadata[key]

    def names(self) -> list[str]:
        return self.text("cases").split()

    def options(self, case: str) -> dict[str, Any]:
        """Options of a case, `matrix` among them."""
        try:
            found = json.loads(self.text(case))
        except json.JSONDecodeError as error:
            raise self.fault(case, f"the metadata are not JSON: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("matrix"), str):
            raise self.fault(case, "the metadata have no field matrix")
        if f"{found['matrix']}.scores" not in self.tensors:
            raise self.fault(case, f"matrix {found['matrix']} is not in the file")
        return found

    def tensor(self, owner: str, field: str) -> np.ndarray:
        """`MATRIX.field` or `CASE.field`."""
        found, scores = self.tensors.get(f"{owner}.{field}"), self.tensors.get(f"{owner.partition('.')[0]}.scores")
        if found is None:
            raise self.fault(owner, f"tensor {owner}.{field} is not in the file")
        dtype, rank = FIELDS[field]
        shape = (1,) if scores is None or rank == 0 else scores.shape[:rank]
        if found.dtype != dtype or found.shape != shape:
            raise self.fault(owner, f"{field} is {found.dtype} {list(found.shape)}, not {np.dtype(dtype)} {list(shape)}")
        return found


def load(path: str | pathlib.Path) -> Vectors:
    """Reads a file of vectors (docs/vectors.md)."""
    path = pathlib.Path(path)
    data = path.read_bytes()
    vectors, start = Vectors(path, {}, {}), 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise vectors.fault("header", f"the file has {len(data)} bytes, and its header {start - 8}")
    try:
        header = json.loads(data[8:start])
        vectors.metadata.update(header.pop("__metadata__", {}))
        entries = {name: (DTYPES[one["dtype"]], one["shape"], *one["data_offsets"]) for name, one in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise vectors.fault("header", f"is not that of safetensors: {type(error).__name__} {error}") from None
    if vectors.text("format") != FORMAT or vectors.text("version") not in VERSIONS:
        found = f"format is {vectors.text('format')}, version {vectors.text('version')}"
        raise vectors.fault("__metadata__", f"{found}; known are {FORMAT}, version {' and '.join(VERSIONS)}")
    for name, (dtype, shape, begin, end) in entries.items():
        try:
            vectors.tensors[name] = np.frombuffer(data[start + begin : start + end], dtype).reshape(shape)
        except ValueError as error:
            raise vectors.fault(name.rpartition(".")[0], f"{name.rpartition('.')[2]}: {error}") from None
    return vectors


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of the function. `name` is that of the vector, `MATRIX.K2` or `MATRIX.c1`."""

    name: str
    scores: np.ndarray  # [n,e] float64: softmax over experts
    given: np.ndarray  # [n,e] float32: the scores, or logits whose softmax they are
    valid: np.ndarray  # [n] bool
    k: int

    @property
    def matrix(self) -> str:
        return self.name.split(".")[0]

    @property
    def padded(self) -> bool:
        return not self.valid.all()

    def compact(self) -> Case:
        """The same tokens without the padding between them."""
        keep = self.valid
        return dataclasses.replace(self, scores=self.scores[keep], given=self.given[keep], valid=keep[keep])


def cases(experts_choose: bool, logits: bool) -> tuple[list[Case], str]:
    """All cases of one kind of router, and the version of the vectors."""
    vectors = load(folder() / ("expert_choice.safetensors" if experts_choose else "topk.safetensors"))
    made = []
    for matrix in MATRICES:
        scores, valid = vectors.tensor(matrix, "scores").astype(np.float64), vectors.tensor(matrix, "valid").astype(bool)
        given = vectors.tensor(matrix, "logits" if logits else "scores")
        for case in (f"{matrix}.{name}" for name in (("c1", "c2") if experts_choose else ("K1", "K2", "K3"))):
            if experts_choose:  # all experts of a vector have the same number of tokens
                k = int(vectors.tensor(case, "taken")[:, 0].sum())
            else:
                k = vectors.options(case)["experts_per_token"]
            made.append(Case(case, scores, given, valid, k))
    return made, vectors.text("version")
