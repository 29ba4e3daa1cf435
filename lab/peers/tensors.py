"""safetensors files with NumPy alone, and the samples in which results are compared."""
import json
import math
import struct

import numpy as np

SAMPLE = 1 << 18  # as in choir_worker.c


def sample(flat):
    """Every s-th element of a flat array, all of a small one."""
    return flat[:: (len(flat) // SAMPLE) | 1]


def read(path):
    """Name to array; F32 alone. Nothing is copied: pages are read from the file on first access."""
    data = np.memmap(path, mode="r")
    size = struct.unpack("<Q", data[:8].tobytes())[0]
    header = json.loads(data[8 : 8 + size].tobytes())
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        assert about["dtype"] == "F32", f"{path}: {name} is {about['dtype']}"
        tensors[name] = data[8 + size + begin : 8 + size + end].view(np.float32).reshape(about["shape"])
    return tensors


def write(path, tensors):
    """Name to (shape, iterator of float32 blocks): large tensors are never in memory as a whole."""
    header, offset = {}, 0
    for name, (shape, _) in tensors.items():
        end = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, blocks in tensors.values():
            for block in blocks:
                f.write(np.ascontiguousarray(block, np.float32).data)
