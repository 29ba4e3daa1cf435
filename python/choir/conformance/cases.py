"""The inputs: matrices of scores from the routing vectors (vectors/README.md), each with several k."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np

MATRICES = ("random", "skewed", "few", "padded", "equal")
DTYPES = {"U8": np.uint8, "I32": np.int32, "F32": np.float32, "F64": np.float64}


def folder() -> pathlib.Path:
    """Where the vectors are: inside an installed package, or next to it in the source tree."""
    package = pathlib.Path(__file__).resolve().parents[1]
    places = [package / "vectors", package.parents[1] / "vectors"]
    found = next((place for place in places if (place / "topk.safetensors").exists()), None)
    if found is None:
        raise FileNotFoundError(f"no routing vectors (topk.safetensors) in {places[0]} or {places[1]}")
    return found


def load(path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[start + begin : start + end], DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


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
    tensors, metadata = load(folder() / ("expert_choice.safetensors" if experts_choose else "topk.safetensors"))
    made = []
    for matrix in MATRICES:
        scores, valid = tensors[f"{matrix}.scores"].astype(np.float64), tensors[f"{matrix}.valid"].astype(bool)
        given = tensors[f"{matrix}.logits" if logits else f"{matrix}.scores"]
        for name in ("c1", "c2") if experts_choose else ("K1", "K2", "K3"):
            options = json.loads(metadata[f"{matrix}.{name}"])
            if experts_choose:  # every expert of a vector takes the same number of tokens
                k = int(tensors[f"{matrix}.{name}.taken"][:, 0].sum())
            else:
                k = options["experts_per_token"]
            made.append(Case(f"{matrix}.{name}", scores, given, valid, k))
    return made, metadata["version"]
