"""What PyTorch says of choir.torch on a device: `safety` (waits, CUDA graphs, determinism, for every router) and `layers` (times);
and `steps`: which kernels a training step of choir itself runs, by PyTorch's profiler, which sees the whole process. Each finding is written at once, as a line of JSON."""
import argparse, collections, copy, json, os, statistics, sys, time, traceback
import torch
from torch import nn
import choir.torch as ct

import model

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from torch_layers import Grouped, Plain

p = argparse.ArgumentParser()
p.add_argument("part")
p.add_argument("--device", default="cuda")
p.add_argument("--lines", required=True)
p.add_argument("--small", action="store_true")
p.add_argument("--configs", default="configs")
o = p.parse_args()
cuda, lines = o.device == "cuda", open(o.lines, "w", buffering=1)
ROUTERS = ["expert_choice", "capped_expert_choice", "global_topk", "switch_top1", "gshard_top2", "quantile_balanced", "bias_balanced", "base", "kmeans", "hash", "random", "dense"]


def tell(**found):
    lines.write(json.dumps(found) + "\n")
    print(json.dumps(found)[:400], flush=True)


def tried(what, f):
    try:
        return f()
    except Exception as e:  # noqa: BLE001
        tell(what=what, error=f"{type(e).__name__}: {str(e)[:300]}", at=traceback.format_exc().strip().splitlines()[-3:-1])


def layer(name, d=64, h=128, e=8, **more):
    opts = {"switch_top1": {"jitter": 0}}.get(name, {})
    return ct.MoE(d, h, 1 if name == "dense" else e, name, device=o.device, **{**opts, **more})


def safety():
    x0, ids = torch.randn(4, 64, 64, device=o.device), torch.randint(0, 99, (4, 64), device=o.device)
    for dtype in (torch.float32, torch.bfloat16):
        for name in ROUTERS:
            def one():
                l = layer(name, dtype=dtype)
                x = x0.to(dtype, copy=True).requires_grad_()
                run = lambda: (l(x, ids).float().square().sum() + l.aux_loss).backward()
                run()
                found = {"what": f"safety {name} {dtype}"}
                if cuda:
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    run()
                    found["waits"] = False
                except RuntimeError as e:
                    found["waits"] = str(e)[:120]
                finally:
                    if cuda:
                        torch.cuda.set_sync_debug_mode("default")
                a, b = copy.deepcopy(l), copy.deepcopy(l)  # determinism of one step
                outs = []
                for m in (a, b):
                    m.zero_grad(); xx = x0.to(dtype, copy=True).requires_grad_(); torch.manual_seed(1)
                    y = m(xx, ids); y.float().square().sum().backward(); outs.append((y, m.w1.grad, xx.grad))
                found["same twice"] = [bool(torch.equal(u, v)) for u, v in zip(*outs)]
                # beside the CPU, float32: the same choice of the same scores
                s = torch.softmax(torch.randn(256, 1 if name == "dense" else 8), 1)
                if name not in ("base",):
                    r = [ct.route(t, name, tokens=torch.arange(256, device=t.device)) for t in (s, s.to(o.device))]
                    found["choice is the CPU's"] = bool(torch.equal(r[0].taken, r[1].taken.cpu()))
                if cuda and name not in ("base",):
                    try:
                        m = copy.deepcopy(l); xs = x0.to(dtype, copy=True).requires_grad_(); side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
                        with torch.cuda.stream(side):
                            for _ in range(3):
                                m.zero_grad(set_to_none=True); m(xs, ids).float().sum().backward()
                        torch.cuda.current_stream().wait_stream(side)
                        g = torch.cuda.CUDAGraph(); m.zero_grad(set_to_none=True)
                        with torch.cuda.graph(g):
                            y = m(xs, ids); y.float().sum().backward()
                        g.replay(); torch.cuda.synchronize(); found["cuda graph"] = bool(torch.isfinite(y).all())
                    except Exception as e:  # noqa: BLE001
                        found["cuda graph"] = f"{type(e).__name__}: {str(e)[:160]}"
                        torch.cuda.synchronize()
                tell(**found)
            tried(f"safety {name} {dtype}", one)


def clock(f, rounds=15, warm=3, budget=6.0):
    """Median ms."""
    for _ in range(warm):
        f()
    if not cuda:
        times = []
        t0 = time.time()
        while len(times) < 5 and time.time() - t0 < budget:
            t = time.perf_counter(); f(); times.append(1e3 * (time.perf_counter() - t))
        return statistics.median(times)
    torch.cuda.synchronize(); times = []; t0 = time.time()
    while len(times) < rounds and time.time() - t0 < budget:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize(); times.append(a.elapsed_time(b))
    return statistics.median(times)


def layers():
    kind = torch.float32 if o.small else torch.bfloat16
    n, d, h, e = (512, 64, 128, 8) if o.small else (65536, 768, 3072, 64)
    m = 512 if o.small else 8192
    a, b = (torch.randn(m, m, device=o.device, dtype=kind) for _ in range(2))
    ms = clock(lambda: a @ b); tell(what=f"peak matmul {m}^3 {kind}", ms=ms, tflops=2 * m**3 / ms / 1e9)
    c = torch.randn((1 << 20) if o.small else (1 << 30), device=o.device); q = torch.empty_like(c)
    ms = clock(lambda: q.copy_(c)); tell(what="copy", ms=ms, gbs=2 * c.numel() * 4 / ms / 1e6)
    del a, b, c, q
    flops = 12 * 2 * n * d * h  # forward and backward at c = 2, as docs/layer.md counts
    made = {"device": o.device, "dtype": kind}
    base = ct.ExpertChoice(d, h, e, capacity_factor=2, **made)
    ways = {"choir ExpertChoice": base, "dense": nn.Sequential(nn.Linear(d, 2 * h, False, **made), nn.GELU(), nn.Linear(2 * h, d, False, **made)),
            "plain topk bmm": Plain(base), "grouped_mm token choice": Grouped(base), "choir TokenChoice(balanced)": ct.TokenChoice(d, h, e, 2, balance="quantile", **made),
            "choir gshard_top2": ct.TokenChoice(d, h, e, 2, **made)}
    x, cot = torch.randn(n, d, **made, requires_grad=True), torch.randn(n, d, **made)
    tried("same", lambda: torch.testing.assert_close(ways["plain topk bmm"](x), base(x), rtol=0.05, atol=0.05))

    def step(run, params):
        torch.autograd.grad(run(x), [x, *params], cot, allow_unused=True)

    def one(name, run, params, **more):
        if cuda:
            torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()
        t = time.time()
        step(run, params)
        first = time.time() - t
        both = clock(lambda: step(run, params))
        with torch.no_grad():
            forward = clock(lambda: run(x))
        tell(what=name, ms=both, forward_ms=forward, tflops=flops / both / 1e9, first_s=round(first, 1),
             peak_mib=round((torch.cuda.max_memory_allocated() - before) / 2**20) if cuda else None, **more)

    for name, way in ways.items():
        tried(name, lambda: one(name, way, list(way.parameters())))
    compiled = ["choir ExpertChoice", "plain topk bmm", "dense", "choir TokenChoice(balanced)"]
    for name in compiled[: 1 if o.small else None]:
        tried(name + ", compiled", lambda: one(name + ", compiled", torch.compile(ways[name], backend="aot_eager" if o.small else "inductor"), list(ways[name].parameters())))
    tried("graphs", lambda: one("choir ExpertChoice, reduce-overhead", torch.compile(ways["choir ExpertChoice"], mode="reduce-overhead"), list(base.parameters())) if cuda else None)

    def profile(name):  # which kernels, how many
        acts = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if cuda else [])
        with torch.profiler.profile(activities=acts) as prof:
            step(ways[name], list(ways[name].parameters()))
            if cuda:
                torch.cuda.synchronize()
        found = collections.Counter(); count = 0
        for ev in prof.events():
            if (ev.device_type == torch.autograd.DeviceType.CUDA) if cuda else ev.name.startswith("aten::"):
                found[ev.name[:90]] += (ev.device_time if cuda else ev.self_cpu_time_total) / 1e3; count += 1
        tell(what=f"profile {name}", launches=count, ms=sum(found.values()), kernels=[(k, round(v, 3)) for k, v in found.most_common(25)])
    for name in ("choir ExpertChoice", "plain topk bmm", "choir TokenChoice(balanced)"):
        tried("profile " + name, lambda: profile(name))

    def causal():  # eval by thresholds: memory grows with e (n is halved until it fits)
        l = ct.ExpertChoice(d, h, e, causal=True, **made)
        with torch.no_grad():
            l(x.detach()); ct.update_routers(l); l.eval()
        k = n
        while k >= 256:
            try:
                if cuda:
                    torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()
                with torch.no_grad():
                    ms = clock(lambda: l(x[:k]), 5, 1)
                tell(what=f"causal eval n={k}", ms=ms, peak_mib=round((torch.cuda.max_memory_allocated() - before) / 2**20) if cuda else None)
                if k < n // 8 or not cuda: return
            except torch.cuda.OutOfMemoryError as ex:
                tell(what=f"causal eval n={k}", error=str(ex)[:150]); torch.cuda.empty_cache()
            k //= 4
    tried("causal", causal)


def trainer_of(config, sequences, length, **more):
    """A trainer of libchoir's, and tokens for it."""
    import choir
    c = choir.Config(f"{o.configs}/{config}.json", **{"model.vocab_size": 32000, "train.batch_sequences": sequences, "train.sequence_length": length, "train.accumulate": 1}, **more)
    trainer = choir.Trainer(choir.Model(c, backend="cuda" if cuda else "cpu", compute="bf16" if cuda else None))
    return trainer, torch.randint(0, int(c["vocab_size"]), trainer.shape, dtype=torch.int32).numpy()


def kernels_of(call):
    """Milliseconds by kernel, and how many ran."""
    found, count = collections.Counter(), 0
    if cuda:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
            call()
        for ev in prof.events():
            if ev.device_type == torch.autograd.DeviceType.CUDA:
                found[ev.name[:60]] += ev.device_time / 1e3
                count += 1
    return found, count


def steps():
    """Kernels of libchoir's own step, most time first."""
    for config, sequences, length in [("pico", 2, 64)] if o.small else [("0.1b-64e", 16, 1024), ("small", 16, 512), ("nano", 32, 128)]:
        def one():
            trainer, tokens = trainer_of(config, sequences, length)
            for _ in range(4):  # the third is captured as a graph
                trainer.step(tokens)
            t = time.time()
            trainer.step(tokens)
            seconds, (found, count) = time.time() - t, kernels_of(lambda: trainer.step(tokens))
            tell(what=f"step {config} {sequences} x {length}", ms=1e3 * seconds, launches=count, busy_ms=sum(found.values()),
                 kernels=[(k, round(v, 3)) for k, v in found.most_common(30)])
        tried("step " + config, one)


if cuda:
    torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(1)
{"safety": safety, "layers": layers, "steps": steps}[o.part]()
