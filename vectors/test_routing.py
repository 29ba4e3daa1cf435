"""Runs routing functions against the vectors:  pip install pytest safetensors torch;  pytest vectors/test_routing.py

Put yours into ROUTERS: (scores [n,e], valid [n] bool, options of the case) -> (taken [n,e] bool, gates [n,e])."""
import json
import pathlib
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent


def topk(scores, valid, options):
    nulls, e = options.get("null_experts", 0), scores.shape[1]
    left = (1 - scores.sum(1, keepdim=True)) / max(nulls, 1)
    best = torch.cat([scores, left.expand(-1, nulls)], 1).sort(dim=1, descending=True, stable=True).indices
    taken = torch.zeros(len(scores), e + nulls, dtype=torch.bool).scatter(1, best[:, : options["experts_per_token"]], True)
    taken = taken[:, :e] & valid[:, None]
    gates = scores * taken
    return taken, gates / gates.sum(1, keepdim=True).clamp(min=1e-30) if options.get("normalize_gates") else gates


def of_transformers(module, name):
    """A router of Hugging Face's transformers, which reads logits: those that softmax makes the scores of."""
    module = pytest.importorskip("transformers.models." + module)

    def route(scores, valid, options):
        K, (n, e) = options["experts_per_token"], scores.shape
        shares = options.get("normalize_gates", False)
        config = types.SimpleNamespace(num_experts_per_tok=K, num_experts=e, num_local_experts=e, hidden_size=e)
        router = getattr(module, name)(types.SimpleNamespace(**vars(config), norm_topk_prob=shares))
        if "Mixtral" in name and not shares:
            pytest.skip("its gates are always divided by their sum")
        router.weight.data.copy_(torch.eye(e))
        _, best, index = router(scores.log())
        gates = torch.zeros_like(scores).scatter(1, index, best) * valid[:, None]
        return gates > 0, gates

    return route


# By the name of a file, or FILE:ANYTHING.
ROUTERS = {
    "topk": topk,
    "topk:mixtral": lambda *given: of_transformers("mixtral.modeling_mixtral", "MixtralTopKRouter")(*given),
    "topk:olmoe": lambda *given: of_transformers("olmoe.modeling_olmoe", "OlmoeTopKRouter")(*given),
    "topk:qwen3_moe": lambda *given: of_transformers("qwen3_moe.modeling_qwen3_moe", "Qwen3MoeTopKRouter")(*given),
}


def cases():
    for router in ROUTERS:
        path = HERE / f"{router.split(':')[0]}.safetensors"
        with safe_open(path, "pt") as file:
            told = file.metadata()
        for case in told["cases"].split():
            yield pytest.param(router, path, case, json.loads(told[case]), id=f"{router}-{case}")


@pytest.mark.parametrize("router, path, case, options", cases())
def test_case(router, path, case, options):
    if router.startswith("topk") and options.get("capacity_factor"):
        pytest.skip("these drop nothing")
    if ":" in router and options["matrix"] in ("tied", "equal", "left"):
        pytest.skip("torch.topk says nothing about ties, and these scores are no softmax")
    given = load_file(path)
    scores, valid, cotangent = (given[f"{options['matrix']}.{key}"] for key in ("scores", "valid", "cotangent"))
    scores.requires_grad_()
    taken, gates = ROUTERS[router](scores, valid.bool(), options)
    assert torch.equal(taken, given[f"{case}.taken"].bool())
    torch.testing.assert_close(gates, given[f"{case}.gates"], rtol=1e-5, atol=1e-6)
    (gates * cotangent).sum().backward()
    wanted = given[f"{case}.dscores"]
    if ":" in router:  # scores that are made a softmax once more: their sum stays 1
        wanted = wanted - (wanted * scores.detach()).sum(1, keepdim=True)
    torch.testing.assert_close(scores.grad, wanted, rtol=1e-4, atol=1e-5)
