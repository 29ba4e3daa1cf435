"""examples/expert_choice.py gives what libchoir gives."""

import importlib.util
import unittest

import numpy as np

import choir
import testing
from choir._native import check, ffi, lib, pointer

N, D, H, E = 37, 12, 20, 5


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


if __name__ == "__main__":
    unittest.main()
