"""What the tests of choir.torch share: every router with options, scores with ties, and the device: CHOIR_TORCH_DEVICE, or
--device cuda behind a test's file name."""

import os
import shutil
import socket
import subprocess
import sys
import unittest

import testing

try:
    import torch
except ImportError:
    torch = None
if torch:
    import choir.torch  # so that choir.torch is there in every test that imports choir

if "--device" in sys.argv:
    at = sys.argv.index("--device")
    os.environ["CHOIR_TORCH_DEVICE"] = sys.argv[at + 1]
    del sys.argv[at : at + 2]
# A run that was killed leaves half a file in PyTorch's own cache, which the next one would load.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(testing.directory())
os.environ["USE_LIBUV"] = "0"  # which Debian 13's PyTorch asks for and was built without
DEVICE = os.environ.get("CHOIR_TORCH_DEVICE", "cpu")
ANY_ORDER = 0.0 if DEVICE == "cpu" else 1e-10  # how far two runs differ, as index_add adds in any order on CUDA
CASES = (
    ("expert_choice", {}),
    ("expert_choice", {"capacity_factor": 1.1, "normalize_gates": True}),
    ("expert_choice", {"pool": "sequence"}),
    ("expert_choice", {"pool": "position"}),
    ("expert_choice", {"pool": "group", "group_size": 33}),
    ("capped_expert_choice", {"cap": 2}),
    ("capped_expert_choice", {"cap": 0}),
    ("capped_expert_choice", {"cap": 3, "pool": "sequence"}),
    ("global_topk", {}),
    ("global_topk", {"cap": 2}),
    ("global_topk", {"pool": "sequence", "capacity_factor": 1.5}),
    ("switch_top1", {"capacity_factor": 0.8, "jitter": 0}),
    ("gshard_top2", {}),
    ("gshard_top2", {"normalize_gates": True}),
    ("quantile_balanced", {}),
    ("quantile_balanced", {"experts_per_token": 3, "normalize_gates": True}),
    ("bias_balanced", {"experts_per_token": 3, "normalize_gates": True}),
    ("expert_choice", {"score": "sigmoid"}),
    ("gshard_top2", {"score": "sigmoid", "priority": "score"}),
    ("topk", {"experts_per_token": 3, "normalize_gates": True, "z_loss_weight": 0.01}),
    ("topk", {"score": "sigmoid", "aux_scope": "sequence", "capacity_factor": 0.8, "priority": "score"}),
    ("topk", {"experts_per_token": 4, "null_experts": 6, "normalize_gates": True}),
    ("topk", {"experts_per_token": 4, "null_experts": 2, "aux_scope": "sequence", "capacity_factor": 0.8}),
    ("capped_expert_choice", {"cap": 3, "solver": "dykstra", "solver_iterations": 10}),
    ("base", {}),
    ("kmeans", {}),
    ("hash", {}),
    ("random", {"experts_per_token": 3}),
    ("dense", {}),
)
LAYERS = tuple({name: (name, options) for name, options in reversed(CASES)}.values()) + (
    ("capped_expert_choice", {"cap": 3, "solver": "dykstra", "solver_iterations": 10}),
    ("global_topk", {"cap": 2, "gate_on": "input"}),
)


def experts_of(router):
    return 1 if router == "dense" else 8


def planted(n, e, dtype=None):
    """Scores [n,e] that rows sum up to about 1, on a grid so coarse that most have equals; any type holds them exactly."""
    return ((torch.softmax(torch.randn(n, e), 1) * 64).round() / 64).to(DEVICE, dtype or torch.float32)


said = set()


def say(law, why):
    """A line that ./check looks for, once: it begins so."""
    line = f"NOT TESTED: choir.torch: {law}: PyTorch {torch.__version__} {why}"
    if line not in said:
        print("", line, sep="\n", flush=True)
    said.add(line)


def lacks(law, *names):
    """Whether this PyTorch has none of what the law needs, dotted names below torch; then says so."""
    for name in names:
        found = torch
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            say(law, f"has no torch.{name}")
            return True
    return False


def cannot_compile(law):
    """Whether this PyTorch does not compile layers: 2.6 does not see through a NamedTuple's properties."""
    if lacks(law, "compile", "library.custom_op"):
        return True
    old = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 6)
    if old:
        say(law, "does not compile layers")
    return old


def cannot_generate_code(law):
    """Whether PyTorch's own compiler does not work here: its code for CPUs is C++."""
    if cannot_compile(law):
        return True
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not compiler:
        say(law, "finds no C++ compiler")
    return not compiler


def cannot_meet(law):
    """Whether torchrun cannot start: it asks for libuv whatever USE_LIBUV says, and Debian 13's PyTorch has none."""
    try:
        torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    except RuntimeError:
        say(law, "was built without libuv")
        return True
    return False


def run_processes(file, count, *words):
    """`python FILE process WORDS` in `count` processes of one torch.distributed group; all must end well."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", file, "process", *words],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    for one in made:
        _, errors = one.communicate(timeout=600)
        if one.returncode:
            raise AssertionError(f"a process ended with {one.returncode}: {errors[-3000:]}")


@unittest.skipUnless(torch, "PyTorch is not installed")
class TorchTest(unittest.TestCase):
    def setUp(self):
        self.torch = choir.torch
        torch.manual_seed(1)
        torch.set_num_threads(2)

    def each(self, cases=CASES):
        """(router, options) one after another; says at which one a test ended."""
        for router, options in cases:
            try:
                yield router, dict(options)
            except GeneratorExit:
                print(f"{self.id()}: {router} {options}", flush=True)
                raise
