"""Batched products for PyTorch on CPUs, each in the faster of two ways.

`inside`: torch.bmm. PyTorch 1.13 without MKL makes it a loop over experts in fp32, all threads inside one product. `across`: every thread
takes its share of the experts as a torch.bmm of one thread each, which wins where products are small. The first call of a
shape times both and the faster one stays.
"""
import concurrent.futures
import ctypes
import time

import torch


def _blas_threads(count):
    """Libraries with a thread count of their own; OpenMP's is the calling thread's, which torch sets."""
    everything = ctypes.CDLL(None)
    for name in ("bli_thread_set_num_threads", "openblas_set_num_threads"):
        if hasattr(everything, name):
            getattr(everything, name)(count)


class Products:
    def __init__(self, threads, way="auto"):
        self.threads, self.way, self.chosen = threads, way, {}
        self.pool = concurrent.futures.ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        list(self.pool.map(lambda _: time.sleep(0.01), range(4 * threads)))  # all threads are there
        torch.set_num_threads(threads)

    def inside(self, a, b, out):
        torch.bmm(a, b, out=out)

    def across(self, a, b, out):
        parts = zip(a.chunk(self.threads), b.chunk(self.threads), out.chunk(self.threads))
        _blas_threads(1)
        list(self.pool.map(lambda p: self._one(*p), parts))
        _blas_threads(self.threads)

    @staticmethod
    def _one(a, b, out):
        with torch.no_grad():  # of this thread
            torch.bmm(a, b, out=out)

    def _choose(self, a, b, out):
        if self.way != "auto":
            return getattr(self, self.way)
        best = {}
        for _ in range(3):
            for way in (self.inside, self.across):
                begin = time.perf_counter()
                way(a, b, out)
                best[way] = min(best.get(way, 1e9), time.perf_counter() - begin)
        return min(best, key=best.get)

    def bmm(self, a, b, out=None):
        """a [e,m,k] b [e,k,n], either may be transposed."""
        if out is None:
            out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
        key = (a.dtype, a.shape, a.stride(), b.shape, b.stride())
        if key not in self.chosen:
            self.chosen[key] = self._choose(a, b, out) if self.threads > 1 else self.inside
        self.chosen[key](a, b, out)
        return out
