"""Runs routing functions against the vectors:  pip install pytest safetensors torch;  pytest vectors/test_routing.py

Put yours into ROUTERS: (scores [n,e], valid [n] bool, options of the case) -> (taken [n,e] bool, gates [n,e]), or
(taken, gates, aux_loss)."""
import json
import pathlib
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

INPUTS, EXPECTED = ("scores", "valid", "cotangent"), ("taken", "gates", "aux_loss", "dscores", "daux")
HERE = pathlib.Path(__file__).parent


def topk(scores, valid, options):
    nulls, e = options.get("null_experts", 0), scores.shape[1]
    left = (1 - scores.sum(1, keepdim=True)) / max(nulls, 1)
    every = torch.cat([scores, left.expand(-1, nulls)], 1)
    best = every.sort(dim=1, descending=True, stable=True).indices
    taken = torch.zeros(every.shape, dtype=torch.bool).scatter(1, best[:, : options["experts_per_token"]], True)
    shares = taken[valid].float().mean(0) / options["experts_per_token"]
    aux_loss = (e + nulls) * (shares * every[valid].mean(0)).sum()  # null experts are balanced, too
    taken = taken[:, :e] & valid[:, None]
    gates = scores * taken
    if options.get("normalize_gates"):
        gates = gates / gates.sum(1, keepdim=True).clamp(min=1e-30)
    return taken, gates, aux_loss


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


def read(path):
    """Tensors and metadata of a file; (case, options) of all its cases."""
    try:
        with safe_open(path, "pt") as file:
            metadata, names = file.metadata() or {}, set(file.keys())
        found = [(case, json.loads(metadata[case])) for case in metadata["cases"].split()]
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from None
    for case, options in found:
        wanted = [f"{options.get('matrix')}.{key}" for key in INPUTS] + [f"{case}.{key}" for key in EXPECTED]
        missing = [name for name in wanted if name not in names]
        if missing:
            raise ValueError(f"{path}: {case}: tensor {missing[0]} is not in the file")
    return found


def cases():
    for router in ROUTERS:
        path = HERE / f"{router.split(':')[0]}.safetensors"
        for case, options in read(path):
            yield pytest.param(router, path, case, options, id=f"{router}-{case}")


@pytest.mark.parametrize("router, path, case, options", list(cases()))
def test_case(router, path, case, options):
    if router.startswith("topk") and options.get("capacity_factor"):
        pytest.skip("these drop nothing")
    if ":" in router and options["matrix"] in ("tied", "equal", "left"):
        pytest.skip("torch.topk says nothing about ties, and these scores are no softmax")
    given = load_file(path)
    scores, valid, cotangent = (given[f"{options['matrix']}.{key}"] for key in INPUTS)
    scores.requires_grad_()

    def same(field, got, rtol, atol, of_scores=False):
        wanted = given[f"{case}.{field}"]
        if of_scores and ":" in router:  # scores that are made a softmax once more: their sum stays 1
            wanted = wanted - (wanted * scores.detach()).sum(1, keepdim=True)
        named = lambda text: f"{path.name}: {case}: {field}: {text}"
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol, check_dtype=False, msg=named)

    taken, gates, *losses = ROUTERS[router](scores, valid.bool(), options)
    same("taken", taken.to(torch.uint8), 0, 0)
    same("gates", gates, 1e-5, 1e-6)
    same("dscores", torch.autograd.grad((gates * cotangent).sum(), scores, retain_graph=True)[0], 1e-4, 1e-5, True)
    for loss in losses:
        same("aux_loss", loss.reshape(1), 1e-5, 1e-6)
        same("daux", torch.autograd.grad(loss, scores)[0], 1e-4, 1e-6, True)
