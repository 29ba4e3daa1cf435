"""examples/expert_choice.py computes the same as libchoir, and the examples of docstrings run."""

import ast
import contextlib
import doctest
import importlib.util
import io
import os
import re
import shutil
import tempfile
import textwrap
import unittest

import numpy as np

import choir
import testing
from choir._native import check, ffi, lib, pointer

try:
    import torch

    import choir.torch
except ImportError:
    torch = None

N, D, H, E = 37, 12, 20, 5

# What the examples of docstrings use without defining it, by the name of the function or class.
LAYER = """
layer = choir.torch.MoE(64, 128, 8, "topk")
layer(torch.randn(4, 32, 64))
"""
MODEL = "model = choir.Model.load('run')\n"
WIDE = "x, target = torch.randn(2, 16, 512), torch.randn(2, 16, 512)\n"
TORCH_MODEL = """
config = choir.Config(layers=2, d_model=32, d_hidden=48, heads=2, experts=16, vocab_size=320, **{
    "train.sequence_length": 128, "train.batch_sequences": 2, "router.name": "topk"})
model = choir.torch.Transformer(config)
model.loss(torch.randint(0, 320, (2, 128))).backward()
"""
PARALLEL = "import torch.distributed.tensor.parallel\n"  # PyTorch 2.0
MESH = PARALLEL + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
ended.callback(torch.distributed.destroy_process_group)
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("ep", "tp"))
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.moe = choir.torch.MoE(16, 32, 4, "topk")
model = torch.nn.Module()
model.layers = torch.nn.ModuleList([Block()])
"""
OLMOE = """
import transformers
transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
    vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, num_experts=64, num_experts_per_tok=8, pad_token_id=None,
)).save_pretrained("allenai/OLMoE-1B-7B-0924")
model = transformers.AutoModelForCausalLM.from_pretrained("allenai/OLMoE-1B-7B-0924")
"""
ADAPTED = OLMOE + """
import pathlib, peft
base, folder = model, pathlib.Path("adapters")
adapted = peft.get_peft_model(choir.torch.convert(base, "bias_balanced"), peft.LoraConfig(target_modules=["q_proj"]))
"""
RTE = """
import os
os.mkdir("glue")
for split in ("train", "dev"):
    rows = "".join(f"{i}\\tkalo ten.\\tmisur.\\t{('entailment', 'not_entailment')[i % 2]}\\n" for i in range(8))
    with open(f"glue/{split}.tsv", "w") as file:
        file.write("index\\tsentence1\\tsentence2\\tlabel\\n" + rows)
"""
PREPARED = {
    "choir": "scores = np.random.default_rng(1).random((32, 8), np.float32)",
    "choir._locality.locality": LAYER + "B, T = 4, 32",
    "choir.config.Config": "Config = choir.Config",
    "choir.config.Config.describe": "Config = choir.Config",
    "choir.data.build": "import os, shutil; shutil.rmtree('data'); os.mkdir('books'); shutil.move('book.txt', 'books')",
    "choir.model.Model.evaluate": MODEL,
    "choir.model.Model.forward": MODEL + "ids = np.arange(32)",
    "choir.model.Model.generate": MODEL,
    "choir.model.Model.score": MODEL,
    "choir.model.Session": MODEL,
    "choir.plugin.load_plugin": "open('louder.py', 'w').write('import choir, numpy as np\\n' + LOUDER.replace('louder', 'again'))",
    "choir.routing.route": "route = choir.route",
    "choir.routing.route_backward": "scores = dgates = np.random.default_rng(1).random((32, 8), np.float32)",
    "choir.torch": "scores = torch.randn(32, 8)",
    "choir.torch.convert.convert": OLMOE,
    "choir.torch.convert.from_pretrained": OLMOE + "choir.torch.convert(model, 'topk').save_pretrained('folder')",
    "choir.torch.convert.revert": OLMOE + "choir.torch.convert(model, 'topk')",
    "choir.torch.hf.lightning_callback": "from lightning.pytorch import Trainer",
    "choir.torch.hf.trainer_callback": "import transformers; Trainer = lambda model, *_, callbacks: callbacks; model = None",
    "choir.torch.layer.ExpertChoice": WIDE,
    "choir.torch.layer.MoE": "x, target = torch.randn(2, 16, 64), torch.randn(2, 16, 64)",
    "choir.torch.layer.TokenChoice": WIDE,
    "choir.torch.parallel.ExpertParallel": MESH,
    "choir.torch.parallel.ExpertTensorParallel": MESH,
    "choir.torch.parallel.clip_grad_norm_": PARALLEL + TORCH_MODEL,
    "choir.torch.recorded.recorded": OLMOE + """
choir.torch.convert(model, "topk", top_k=2)
ids = torch.randint(0, 64, (1, 9))
from types import SimpleNamespace
output = SimpleNamespace(routed_experts=torch.rand(9, 2, 64).topk(2).indices.numpy())
""",
    "choir.torch.recorded.routed_experts": TORCH_MODEL,
    "choir.torch.routers.route": "scores, loss = torch.randn(32, 8), 0.0",
    "choir.torch.saved.load_router_state": ADAPTED + """
adapted.save_pretrained(folder)
torch.save(choir.torch.router_state(adapted), folder / "routers.pt")
base = transformers.AutoModelForCausalLM.from_pretrained("allenai/OLMoE-1B-7B-0924")
""",
    "choir.torch.saved.router_state": ADAPTED,
    "choir.torch.state.start_step": TORCH_MODEL,
    "choir.torch.state.update_routers": TORCH_MODEL + """
from torch.optim.optimizer import register_optimizer_step_pre_hook  # PyTorch 2.0: optimizers have it as well
optimizer = torch.optim.SGD(model.parameters(), 0.1)
""",
    "choir.torch.stats.locality": TORCH_MODEL,
    "choir.torch.stats.stats": TORCH_MODEL,
    "choir.torch.transformer.Transformer": "tokens = torch.randint(0, 320, (2, 16))",
    "choir.trainer.Trainer": MODEL + "tokens = np.zeros((8, 32), int)",
    "choir.training.finetune": RTE,
    "choir.training.train": "import os, shutil; shutil.rmtree('run'); os.rename('config.json', 'pico')",
}


def examples():
    """(name, code) of each example: what follows "Example:", a docstring's own code, or lines with >>>."""
    package = testing.SOURCE / "python" / "choir"
    for file in sorted(package.rglob("*.py")):
        module = ".".join(("choir", *file.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        pairs = [(module, ast.parse(file.read_text(encoding="utf-8")))]
        for name, node in pairs:
            pairs += [(f"{name}.{one.name}", one) for one in node.body if isinstance(one, (ast.ClassDef, ast.FunctionDef))]
            text = ast.get_docstring(node) or ""
            _, found, code = text.partition("Example:")
            if found:
                first, _, rest = code.partition("\n")
                yield name, first.strip() or textwrap.dedent(rest)
            elif ">>>" in text:
                yield name, text
            elif isinstance(node, ast.Module) and name in PREPARED:
                yield name, textwrap.dedent("\n".join(re.findall(r"(?m)^ {4}.*|^\w+ = .*", text)))


def example():
    spec = importlib.util.spec_from_file_location("expert_choice", testing.SOURCE / "examples" / "expert_choice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_libchoir(x, Wg, W1, W2, c, dout):
    """out, dx, dWg, dW1, dW2 of choir_layer."""
    out, dx, *gradients = (np.zeros_like(a) for a in (x, x, Wg, W1, W2))
    options, layer = ffi.new("choir_layer_options *"), ffi.new("choir_layer **")
    lib.choir_layer_options_default(options, ffi.sizeof(options[0]))
    options.tokens, options.d_model, options.d_hidden, options.experts = N, D, H, E
    config = choir.Config(**{"router.name": "expert_choice", "router.capacity_factor": c})
    options.config = config.address
    weights, into = (ffi.new("choir_layer_weights *") for _ in range(2))
    weights.router, weights.w1, weights.w2 = map(pointer, (Wg, W1, W2))
    into.router, into.w1, into.w2 = map(pointer, gradients)
    check(lib.choir_layer_create(options, layer))
    check(lib.choir_layer_forward(layer[0], weights, N, pointer(x), ffi.NULL, ffi.NULL, 1, pointer(out)))
    check(lib.choir_layer_backward(layer[0], weights, pointer(x), pointer(dout), pointer(dx), into))
    lib.choir_layer_free(layer[0])
    return out, dx, *gradients


def run_example(name, code):
    if name == "choir.plugin.load_plugin":  # the other example has registered this name
        code = code.replace('"louder"', '"again"')
    names = {"choir": choir, "np": np, "LOUDER": dict(examples())["choir.plugin.experts_choose"].partition("\n\n")[0]}
    if torch is not None:
        names.update(torch=torch, F=torch.nn.functional)
    elif "torch" in code or ".torch" in name:
        raise ImportError("PyTorch is not installed", name="torch")
    with contextlib.ExitStack() as ended:
        folder = ended.enter_context(tempfile.TemporaryDirectory())
        shutil.copytree(testing.run().parent, folder, dirs_exist_ok=True)
        ended.callback(os.chdir, os.getcwd())
        os.chdir(folder)
        ended.enter_context(contextlib.redirect_stdout(io.StringIO()))
        ended.enter_context(contextlib.redirect_stderr(io.StringIO()))
        names["ended"] = ended
        exec(PREPARED.get(name, ""), names)
        if ">>>" not in code:
            exec(compile(code, name, "exec"), names)
            return
        runner = doctest.DebugRunner()
        runner.run(doctest.DocTestParser().get_doctest(code, names, name, name, 0))


class Example(unittest.TestCase):
    def test_example_equals_libchoir(self):
        draw, taught = np.random.default_rng(1), example()
        arrays = [draw.standard_normal(shape).astype(np.float32) for shape in ((N, D), (D, E), (E, D, H), (E, D, H))]
        dout = draw.standard_normal((N, D)).astype(np.float32)
        for c in (0.5, 1, 2.2):
            out, kept = taught.forward(*(a.astype(np.float64) for a in arrays), c)
            ours = out, *taught.backward(*arrays, kept, dout)
            for mine, theirs in zip(ours, by_libchoir(*arrays, c, dout)):
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-4 * np.abs(theirs).max())

    def test_examples_of_docstrings_run(self):
        """Each in a folder with a run and the data that it was trained on."""
        found = list(examples())
        self.assertEqual(set(PREPARED) - {name for name, _ in found}, set())
        for name, code in found:
            with self.subTest(name):
                try:
                    run_example(name, code)
                except ImportError as error:
                    if (error.name or "choir").startswith("choir"):
                        raise
                    print(f"NOT TESTED: the example of {name}: {error}")


if __name__ == "__main__":
    unittest.main()
