"""Selects the BLAS for PyTorch's fp32 products: the fastest one that is installed."""
import glob
import pathlib
import sys

from sides import one_line


def candidates():
    """Environments for PyTorch. OpenBLAS and BLIS of 2022 take newer Intel CPUs for ones without AVX-512, even without AVX; so
    their kernels are set here, and a measurement selects one."""
    yield {}
    for core in ("SkylakeX", "Cooperlake", "Haswell", "Zen"):
        yield {"OPENBLAS_CORETYPE": core}
    for blis in sorted(glob.glob("/usr/lib/*/blis-openmp/libblas.so.3")):
        yield {"LD_PRELOAD": blis}
        for kernels in ("0", "3", "7"):  # skx, haswell, zen3 of BLIS 0.9; others end the process
            yield {"LD_PRELOAD": blis, "BLIS_ARCH_TYPE": kernels}


def describe(environment):
    return " ".join(f"{k}={v}" for k, v in environment.items()) or "nothing set"


def choose(o):
    """The environment in which PyTorch's products are fastest; None where it does not run."""
    probe = [sys.executable, pathlib.Path(__file__).with_name("torch_worker.py"), "products", o.threads]
    own = one_line(probe, o.common)
    if not own:
        return None
    print(f"PyTorch {own['version']} in {sys.executable}, {o.threads} threads")
    if o.blas not in ("auto", "none"):
        return {"LD_PRELOAD": o.blas}
    if o.blas == "none" or o.quick or own["mkl"]:
        return {}
    times = {}
    for candidate in candidates():
        answer = one_line(probe, {**o.common, **candidate})
        if answer:
            times[answer["seconds"]] = candidate
            print(f"  {1e3 * answer['seconds']:8.2f} ms for some products with", describe(candidate))
    if not any("LD_PRELOAD" in c for c in times.values()):
        print("  BLIS is not there: libblis4-openmp may be faster")
    return times[min(times)]
