"""Runs routing functions against the vectors:  pip install pytest safetensors torch;  pytest vectors/test_routing.py

Put yours into ROUTERS: (scores [n,e], valid [n] bool, options of the case) -> (taken [n,e] bool, gates [n,e])."""
import json
import pathlib

import pytest
import torch
from safetensors import safe_open

HERE = pathlib.Path(__file__).parent


def topk(scores, valid, options):
    best = scores.sort(1, descending=True, stable=True).indices[:, : options["experts_per_token"]]
    taken = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True) & valid[:, None]
    gates = scores * taken
    return taken, gates / gates.sum(1, keepdim=True).clamp(min=1e-30) if options.get("normalize_gates") else gates


ROUTERS = {"topk": topk}


def cases():
    for router in ROUTERS:
        with safe_open(HERE / f"{router}.safetensors", "pt") as file:
            told = file.metadata()
            for case in told["cases"].split():
                yield pytest.param(router, file, case, json.loads(told[case]), id=f"{router}-{case}")


@pytest.mark.parametrize("router, file, case, options", cases())
def test_case(router, file, case, options):
    if router == "topk" and options.get("capacity_factor"):
        pytest.skip("this one drops nothing")
    scores, valid, cotangent = (file.get_tensor(f"{options['matrix']}.{key}") for key in ("scores", "valid", "cotangent"))
    scores.requires_grad_()
    taken, gates = ROUTERS[router](scores, valid.bool(), options)
    assert torch.equal(taken, file.get_tensor(f"{case}.taken").bool())
    torch.testing.assert_close(gates, file.get_tensor(f"{case}.gates"), rtol=1e-5, atol=1e-6)
    (gates * cotangent).sum().backward()
    torch.testing.assert_close(scores.grad, file.get_tensor(f"{case}.dscores"), rtol=1e-4, atol=1e-5)
