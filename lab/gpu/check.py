#!/usr/bin/env python3
"""check.py: what a machine with an NVIDIA GPU can say about choir within --budget seconds. Every part is a process with its own
time limit; result.json is written anew after each part, so that a part that fails, hangs or is cut off costs only itself.
Standard library only; torch, numpy and choir are used by the parts."""
import argparse, atexit, concurrent.futures, glob, json, os, platform, re, shutil, signal, subprocess, sys, tempfile, time

import model

HERE = os.path.dirname(os.path.abspath(__file__))
p = argparse.ArgumentParser()
p.add_argument("--site", required=True)
p.add_argument("--out", required=True)
p.add_argument("--source", default=os.getcwd(), help="choir's source, whose python/tests and configs are used")
p.add_argument("--budget", type=float, default=470)
p.add_argument("--only", default="", help="names of parts, with commas")
p.add_argument("--dry", action="store_true")
p.add_argument("--device", default=None)
p.add_argument("--backend", default=None)
o = p.parse_args()
device, backend = o.device or ("cpu" if o.dry else "cuda"), o.backend or "cuda"
BEGAN, work = time.time(), tempfile.mkdtemp()
choir = os.path.join(o.site, "bin", "choir")
atexit.register(shutil.rmtree, work, True)
result = {"argv": sys.argv, "device": device, "backend": backend, "dry": o.dry, "parts": {}}
log = open(os.path.join(o.out, "log.txt"), "a", buffering=1)


def save():
    result["seconds"] = round(time.time() - BEGAN, 1)
    tmp = os.path.join(o.out, "result.json.tmp")
    with open(tmp, "w") as f:
        json.dump(result, f, indent=1)
    os.replace(tmp, os.path.join(o.out, "result.json"))


def left():
    return o.budget - (time.time() - BEGAN)


def libraries():
    """Folders with NVRTC and cuBLAS, which choir's backend looks for by name: the toolkit's, else the wheels of NVIDIA."""
    found = []
    places = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu"]
    for base in {os.path.dirname(os.path.dirname(sys.executable)), sys.prefix}:
        places += sorted(glob.glob(base + "/lib/python3*/site-packages/nvidia/*/lib"))
    for name in ("libnvrtc.so*", "libcublas.so*", "libcublasLt.so*"):
        for place in places:
            if glob.glob(os.path.join(place, name)):
                if place not in found:
                    found.append(place)
                break
    return found


ENV = {**os.environ, "CHOIR_PROGRAM": choir, "COLUMNS": "1000", "CHOIR_CUDA_GRAPHS": "1", "GOMP_SPINCOUNT": "1000", "TORCHINDUCTOR_CACHE_DIR": work + "/inductor",
       "TRITON_CACHE_DIR": work + "/triton", "CHOIR_LIBRARY": o.site + "/lib/libchoir.so.1",
       "PYTHONPATH": os.pathsep.join(filter(None, [o.source + "/python", o.site + "/python", os.environ.get("PYTHONPATH")])),
       "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), o.site + "/lib"]))}
native = {**ENV, "LD_LIBRARY_PATH": os.pathsep.join([o.site + "/stand_in", ENV["LD_LIBRARY_PATH"]])} if o.dry else {**ENV, "LD_LIBRARY_PATH": os.pathsep.join([*libraries(), ENV["LD_LIBRARY_PATH"]])}


def call(command, limit, env=None, cwd=None, keep=4000):
    """{rc, seconds, tail}; the whole process group ends at the limit."""
    t = time.time()
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                            env=env or native, cwd=cwd or work, start_new_session=True, shell=isinstance(command, str))
    try:
        out, _ = made.communicate(timeout=max(1, limit))
        rc = made.returncode
    except subprocess.TimeoutExpired:
        os.killpg(made.pid, signal.SIGKILL)  # this part's own group
        out, _ = made.communicate()
        rc = "timeout"
    text = command if isinstance(command, str) else " ".join(command)
    log.write(f"\n$ {text}\n{out}\n[rc {rc}, {time.time() - t:.1f} s]\n")
    return {"command": text[-300:], "rc": rc, "seconds": round(time.time() - t, 2), "tail": out[-keep:]}


def as_json(r, key="json"):
    """The JSON that a command printed, beside its status."""
    begin = min((i for i in (r["tail"].find("{"), r["tail"].find("[")) if i >= 0), default=-1)
    try:
        r[key] = json.loads(r["tail"][begin:])
        r["tail"] = r["tail"][:begin]
    except ValueError:
        pass
    return r


# ---- parts: name -> (seconds at most, function) ----

def info():
    r = {"platform": platform.platform(), "python": sys.version, "cpus": os.cpu_count(), "libraries": libraries()}
    for name, c in {"nvidia-smi": "nvidia-smi", "glibc": "ldd --version | head -1", "cpu": "lscpu | egrep 'Model name|^CPU\\(s\\)|NUMA|L3|Flags' | cut -c1-1500",
                    "memory": "free -g | head -2", "torch": f"{sys.executable} -c \"import torch;print(torch.__version__, torch.cuda.is_available(), torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')\"",
                    "packages": f"{sys.executable} -m pip list 2>/dev/null | egrep -i 'torch|triton|numpy|cffi|transformers|nvidia' "}.items():
        r[name] = call(c, 25, keep=2500)["tail"]
    return r


def devices():
    return {"version": call([choir, "--version"], 10), "devices": call([choir, "devices"], 40),
            "missing": call(f"ldd {choir} | grep 'not found'", 10)["tail"],
            "import": call([sys.executable, "-c", "import choir, choir.torch, torch; print(choir.__version__)"], 30, ENV)}


def torch_part(name, limit, *more):
    path = os.path.join(o.out, name + ".jsonl")
    env = native if name == "steps" else ENV
    r = call([sys.executable, os.path.join(HERE, "torch_parts.py"), name, "--device", device, "--lines", path, "--configs", os.path.join(o.source, "configs"),
              *(["--small"] if o.dry else []), *more], limit, env)
    try:
        r["lines"] = [json.loads(line) for line in open(path)]
    except (OSError, ValueError) as e:
        r["lines"] = str(e)
    return r


def bench(cases, limit, *more):
    """choir bench as text, so that what was measured before a limit stays: one process, for each start compiles the kernels.
    If the process ends early, each missing case is run alone."""
    words = [w for case in cases for w in case.split()]
    r = {"together": call([choir, "bench", "--backend", backend, "--repetitions", "5", "--seconds", "0.2", *more, *words], min(limit, left()), keep=9000)}
    for case in cases[1:] if r["together"]["rc"] != 0 else []:
        if case.replace("=bf16", "") not in r["together"]["tail"] and left() > 30:
            r[case] = call([choir, "bench", "--backend", backend, *more, *case.split()], min(40, left()), keep=3000)
    return r


def moe_bench():
    """The C layer on the device, with its parts; what its kernels reach alone."""
    if o.dry:
        r = bench(["moe n=256 d=64 h=128 e=8 c=2", "select n=256 e=8 k=64", "head n=64 d=64 V=512", "adafactor batch=2 rows=64 cols=64", "attention B=1 T=16 H=2 dh=8"], 60, "--parts")
        return {**r, "model": guarded(beside_model, r)}
    size = "n=65536 d=768 h=3072 e=64 c=2"
    r = bench([f"moe {size} compute=bf16", f"moe {size}", "moe n=65536 d=768 h=3072 e=16 c=2 compute=bf16", "gemm m=8192 n=8192 k=8192 compute=bf16",
                  "gemm m=65536 n=3072 k=768 compute=bf16", "select n=65536 e=64 k=2048", "head n=16384 d=768 V=32000 compute=bf16",
                  "adafactor batch=16 rows=768 cols=3072", "attention", "attention compute=bf16", "attention B=4 T=1024 compute=bf16"], 75, "--parts")
    return {**r, "model": guarded(beside_model, r)}


def routers():
    """A layer and a training step of every router at equal FLOPs, by the clock."""
    if o.dry:
        return bench(["routers n=32 d=8 h=8 e=4"], 60)
    return bench(["routers n=65536 d=768 h=3072 e=64 compute=bf16", f"router-steps config={o.source}/configs/nano.json B=32 T=128 compute=bf16"], 60)


def beside_model(r):
    """Measured times next to predictions (model.py): ms, predicted ms, ratio; for layers also those of each part."""
    found = {}
    text = "\n".join(x["tail"] for x in r.values())
    for ms, problem, parts in re.findall(r"^ *([0-9.]+) ms .*?((?:moe|select|head|adafactor|attention) \w+=.*)$((?:\n +[a-z].*%.*$)?)", text, re.M):
        predicted = model.of_problem(problem)
        if predicted:
            found[problem] = compared(float(ms), 1e3 * predicted)
        for name, share in re.findall(r"([a-z][a-zA-Z, ]*?) ([0-9.]+) %", parts) if predicted and problem.startswith("moe ") else []:
            if name in model.PARTS_OF_BENCH:
                found[f"{problem}: {name}"] = compared(float(share) / 100 * float(ms), 1e3 * model.part_of_problem(problem, name))
    return found


def guarded(compare, *what):
    """The result of a comparison, or its exception, so that the measurements are kept in any case."""
    try:
        return compare(*what)
    except Exception as e:  # noqa: BLE001
        return {"exception": repr(e)}


def compared(ms, predicted):
    return {"ms": round(ms, 4), "predicted ms": round(predicted, 4), "ratio": round(ms / predicted, 3)}


def step_ms(r):
    found = re.search(r"^ *([0-9.]+) ms .*step config", r["tail"], re.M)
    return float(found[1]) if found else None


def graphs(c):
    """A step of nano as graphs, and launched kernel by kernel: the prediction is the difference of gaps alone."""
    step = [choir, "bench", "--backend", backend, "--repetitions", "20", "step", f"config={c}/nano.json", "B=32", "T=128", "compute=bf16"]
    r = {"as graphs": call(step, 30), "one by one": call(step, 30, {**native, "CHOIR_CUDA_GRAPHS": "0"})}
    ms, plain = step_ms(r["as graphs"]), step_ms(r["one by one"])
    if ms and plain:
        r["model"] = {"step of nano as graphs": compared(ms, plain - 1e3 * model.graph(428))}
    return r


def step_rate():
    c = os.path.join(o.source, "configs")
    if o.dry:
        return bench([f"step config={c}/pico.json B=2 T=128"], 60)
    r = bench([f"step config={c}/nano.json B=32 T=128 compute=bf16", f"step config={c}/small.json B=16 T=512 compute=bf16"], 45)
    r["graphs"] = guarded(graphs, c)
    r["model"] = r["graphs"].pop("model", {})
    for B in (4, 64):
        r[f"0.1b-64e {B} x 1024"] = bench([f"step config={c}/0.1b-64e.json B={B} T=1024 compute=bf16"], 80)
    return r


def losses(out):
    try:
        return [json.loads(line) for line in open(os.path.join(work, out, "metrics.jsonl"))]
    except (OSError, ValueError):
        return []


def train():
    """pico and nano, 20 steps (4 in a rehearsal): the losses on the device beside those of the CPU; bf16 too."""
    text = os.path.join(work, "book.txt")
    with open(text, "w") as f:
        for path in sorted(glob.glob(o.source + "/docs/*.md") + ([] if o.dry else glob.glob(o.source + "/src/*/*.[ch]"))):
            f.write(open(path, errors="replace").read())
    r = {"tokenizer": call([choir, "tokenizer", "train", "--out", "en.model", "--vocab-size", "2048", text], 60),
         "data": call([choir, "data", "build", "--out", "data", "--tokenizer", "en.model", "--holdout", "0.05", text], 60)}
    steps = 2 if o.dry else 20
    for config in ("pico",) if o.dry else ("pico", "nano", "modern-nano"):
        runs = {"cpu": ("cpu", []), "device": (backend, [])}
        if config != "modern-nano":
            runs["again"] = (backend, [])
        if config == "nano":
            runs["bf16"] = (backend, ["--set", "train.compute=bf16"])
        for name, (where, more) in runs.items():
            r[f"{config} {name}"] = call([choir, "train", "--config", f"{o.source}/configs/{config}.json", "--data", "data", "--out", f"{config}-{name}",
                                          "--set", f"train.steps={steps}", "--set", f"train.eval_every={steps}", "--set", f"train.checkpoint_every={steps}",
                                          "--set", "train.batch_sequences=4" if o.dry else "train.cooldown_steps=0", "--backend", where, *more], 60, keep=800)
        of = {name: [x["loss"] for x in losses(f"{config}-{name}") if isinstance(x.get("loss"), float)] for name in runs}
        pairs = list(zip(of["cpu"], of["device"]))
        r[f"{config} losses"] = {**of, "steps compared": len(pairs), "largest difference": max((abs(a - b) for a, b in pairs), default=None),
                                 "twice the same": of["device"] == of.get("again") and bool(of["device"])}
    return r


def op_tests():
    """choir's C tests with the device in the place of the CPU."""
    at = os.path.join(o.site, "tests")
    meta = json.load(open(os.path.join(at, "meta.json")))
    for link, to in ((meta["source"], o.source), (meta["program"], choir)):  # names that were compiled into them
        if not os.path.exists(link):
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(to, link)
    env = {**native, "CHOIR_TEST_BACKEND": backend, "CHOIR_TEST_DEVICE": backend, **({"FAKE_CUDA_HOST": "1"} if o.dry else {}), "PATH": f"{os.path.dirname(choir)}:{os.environ['PATH']}"}
    names = ["test_rows", "test_record_ops"] if o.dry else meta["tests"]
    with concurrent.futures.ThreadPoolExecutor(1 if o.dry else 4) as some:
        made = list(some.map(lambda n: call([f"{at}/{n}"], min(90, max(5, left())), env, keep=1500), names))
    return {"ok": [n for n, r in zip(names, made) if r["rc"] == 0], "not": {n: r for n, r in zip(names, made) if r["rc"] != 0}}


def torch_tests():
    """choir.torch's own tests on the device, a process for each file."""
    tests = os.path.join(o.source, "python", "tests")
    env = {**ENV, "CHOIR_TORCH_DEVICE": device}
    names = ["test_torch_routers"] if o.dry else ["test_torch_routers", "test_torch_layer", "test_torch_model", "test_choir"]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as some:
        made = list(some.map(lambda n: call([sys.executable, "-W", "ignore", "-m", "unittest", "-v", n], min(150, max(5, left())), env, tests, keep=6000), names))
    for r in made:
        r["not ok"] = sorted(set(re.findall(r"^(?:ERROR|FAIL): (\S+)", r["tail"], re.M)))
    return dict(zip(names, made))


def scaling():
    """The C layer on the CPU by threads."""
    size = "n=256 d=64 h=128 e=8 c=2" if o.dry else "n=4096 d=768 h=3072 e=16 c=2"
    return {f"{t} threads {kind}": as_json(call([choir, "bench", "--json", "--threads", str(t), "--repetitions", "3", "--seconds", "0.1", *f"moe {size} compute={kind}".split()],
                                                25, keep=60000)) for kind in ("fp32", "bf16") for t in ((1, 2) if o.dry else (1, 2, 4, 8, 16)) if left() > 5}


def sanitizer():
    """NVIDIA's memory checker on two steps of pico. Slow, so last."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if o.dry or not os.path.exists(tool) or not os.path.exists(os.path.join(work, "data")):
        return {"skipped": "no compute-sanitizer, or no data"}
    return call([tool, "--error-exitcode", "9", choir, "train", "--config", f"{o.source}/configs/pico.json", "--data", "data", "--out", "checked", "--set", "train.steps=2",
                 "--set", "train.eval_every=2", "--set", "train.cooldown_steps=0", "--set", "train.batch_sequences=4", "--backend", backend], min(60, left()))


def beside(*some):
    """Runs the functions at the same time, since none of them measures time. Returns their results by name."""
    with concurrent.futures.ThreadPoolExecutor(len(some)) as pool:
        made = {f.__name__: pool.submit(f) for f in some}
        return {name: one.result() for name, one in made.items()}


PARTS = [  # what is worth most first
    ("info", info),
    ("devices", devices),
    ("moe_bench", moe_bench),
    ("routers", routers),
    ("train", train),
    ("layers", lambda: torch_part("layers", min(150, left()))),
    ("safety", lambda: torch_part("safety", min(60, left()))),
    ("step_rate", step_rate),
    ("steps", lambda: torch_part("steps", min(60, left()))),
    ("tests", lambda: beside(op_tests, torch_tests)),
    ("scaling", scaling),
    ("sanitizer", sanitizer),
]
for name, part in PARTS:
    if o.only and name not in o.only.split(","):
        continue
    if left() < 10:
        result["parts"][name] = {"skipped": "no time left"}
        continue
    t = time.time()
    try:
        found = part()
    except Exception as e:  # noqa: BLE001 one part must not cost the others
        found = {"exception": repr(e)}
    result["parts"][name] = found
    found_seconds = round(time.time() - t, 1)
    result.setdefault("times", {})[name] = found_seconds
    print(f"{name}: {found_seconds} s", flush=True)
    save()
save()


def short():
    """What the reply should show."""
    P = result["parts"]
    for line in (P.get("info", {}).get("torch", ""), P.get("devices", {}).get("devices", {}).get("tail", "")):
        print(line.strip())
    for name in ("safety", "layers", "steps"):
        for line in P.get(name, {}).get("lines") or []:
            if isinstance(line, dict):
                print(name, {k: v for k, v in line.items() if k != "kernels" or name == "steps"})
    def rows(name, r):
        if isinstance(r, dict) and "tail" in r:
            for line in [x for x in r["tail"].splitlines() if " ms " in x or "peak" in x or "%" in x] or [f"rc {r['rc']}: {r['tail'][-400:]}"]:
                print(name, line.replace(o.source, ""))
            for x in (r.get("json") or {}).get("results", []) if isinstance(r.get("json"), dict) else []:
                print(name, x["problem"].replace(o.source, ""), f"{1e3 * x['seconds']:.2f} ms {x['gflops']:.0f} GFLOP/s", "error", x["error"])
        elif isinstance(r, dict):
            for k, v in r.items():
                rows(f"{name} {k}".replace(" together", ""), v)
    for name in ("moe_bench", "routers", "step_rate", "scaling", "sanitizer"):
        rows(name, P.get(name))
    for what, c in {**((P.get("moe_bench") or {}).get("model") or {}), **((P.get("step_rate") or {}).get("model") or {})}.items():
        print(f"model: {what}: {c['ms']} ms, predicted {c['predicted ms']}, ratio {c['ratio']}{'  SLOWER' if c['ratio'] > 1.1 else ''}" if "ratio" in c else f"model: {what}: {c}")
    for k, v in (P.get("train") or {}).items():
        if k.endswith("losses"):
            print("train", k, v.get("largest difference"), "of", v.get("steps compared"), "same twice:", v.get("twice the same"), "last", {n: x[-1:] for n, x in v.items() if isinstance(x, list)})
    t = P.get("tests") or {}
    print("op tests ok", (t.get("op_tests") or {}).get("ok"), "not", {n: (r["rc"], r["tail"][-250:]) for n, r in ((t.get("op_tests") or {}).get("not") or {}).items()})
    for n, r in (t.get("torch_tests") or {}).items():
        print("torch tests", n, r["rc"], r.get("not ok"), r["tail"].strip().splitlines()[-1:])
    print("times", result.get("times"), "all", result.get("seconds"))


try:
    short()
except Exception as e:  # noqa: BLE001
    print("summary:", repr(e))
