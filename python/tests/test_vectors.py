"""vectors/: what others can test against is what choir does; choir.torch does what libchoir does (test_torch_routers.py)."""

import json
import unittest

import numpy as np

import choir
import testing

NAMES = {"U8": np.uint8, "I32": np.int32, "F32": np.float32, "F64": np.float64}


def load(path):
    """Arrays and metadata of a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    told, arrays = header.pop("__metadata__"), {}
    for name, t in header.items():
        first, end = t["data_offsets"]
        arrays[name] = np.frombuffer(data[begin + first : begin + end], NAMES[t["dtype"]]).reshape(t["shape"])
    return arrays, told


def cases():
    for path in sorted((testing.SOURCE / "vectors").glob("*.safetensors")):
        arrays, told = load(path)
        for case in told["cases"].split():
            options = json.loads(told[case])
            matrix = options.pop("matrix")
            if (told["router"], matrix) == ("expert_choice", "few"):
                continue  # choir refuses fewer tokens than experts here
            given = {key: arrays[f"{matrix}.{key}"] for key in ("scores", "valid", "tokens", "cotangent")}
            keys = ("taken", "gates", "aux_loss", "dscores", "daux")
            yield told["router"], case, options, given, {key: arrays[f"{case}.{key}"] for key in keys}


def asked(router, options, given):
    """The arguments of route."""
    words = {"valid": given["valid"], "training": router == "quantile_balanced", **options}
    if router == "hash":
        words["tokens"] = given["tokens"]
    return {**words, "sequence_length": 8 if options.get("pool") == "sequence" else 0}


class Vectors(unittest.TestCase):
    def test_libchoir(self):
        count = 0
        for router, case, options, given, wanted in cases():
            with self.subTest(router=router, case=case):
                words = asked(router, options, given)
                made = choir.route(given["scores"], router, **words)
                taken = np.zeros(given["scores"].shape, np.uint8)
                taken[made.token, made.expert] = 1
                np.testing.assert_array_equal(taken, wanted["taken"])
                np.testing.assert_allclose(made.gates, wanted["gates"], rtol=1e-5, atol=1e-7)
                self.assertAlmostEqual(made.aux_loss, float(wanted["aux_loss"][0]), places=5)
                back = choir.route_backward(given["scores"], given["cotangent"], router, **words)
                np.testing.assert_allclose(back, wanted["dscores"], rtol=1e-4, atol=1e-5)
                back = choir.route_backward(given["scores"], None, router, aux_weight=1.0, **words)
                np.testing.assert_allclose(back, wanted["daux"], rtol=1e-4, atol=1e-6)
                count += 1
        self.assertGreater(count, 60)


if __name__ == "__main__":
    unittest.main()
