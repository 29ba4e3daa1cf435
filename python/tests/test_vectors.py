"""vectors/: what others can test against is what choir does; choir.torch does what libchoir does (test_torch_routers.py)."""

import json
import pathlib
import tempfile
import unittest

import numpy as np

import choir
import testing
from choir.conformance.cases import VectorError, load


def read(path):
    """(router, case, options, inputs, expected values) of every case of a file."""
    vectors = load(path)
    for case in vectors.names():
        options = vectors.options(case)
        matrix = options.pop("matrix")
        given = {key: vectors.tensor(matrix, key) for key in ("scores", "valid", "tokens", "cotangent")}
        wanted = {key: vectors.tensor(case, key) for key in ("taken", "gates", "aux_loss", "dscores", "daux")}
        yield vectors.text("router"), case, options, given, wanted


def cases():
    for path in sorted((testing.SOURCE / "vectors").glob("*.safetensors")):
        for router, case, options, given, wanted in read(path):
            if (router, case.partition(".")[0]) != ("expert_choice", "few"):  # choir refuses fewer tokens than experts here
                yield path.name, router, case, options, given, wanted


def asked(router, options, given):
    """The arguments of route."""
    words = {"valid": given["valid"], "training": router == "quantile_balanced", **options}
    if router == "hash":
        words["tokens"] = given["tokens"]
    return {**words, "sequence_length": 8 if options.get("pool") == "sequence" else 0}


class Vectors(unittest.TestCase):
    def test_libchoir(self):
        count = 0
        for file, router, case, options, given, wanted in cases():
            with self.subTest(file=file, router=router, case=case):
                words = asked(router, options, given)
                made = choir.route(given["scores"], router, **words)
                taken = np.zeros(given["scores"].shape, np.uint8)
                taken[made.token, made.expert] = 1
                np.testing.assert_array_equal(taken, wanted["taken"], "taken")
                np.testing.assert_allclose(made.gates, wanted["gates"], rtol=1e-5, atol=1e-7, err_msg="gates")
                self.assertAlmostEqual(made.aux_loss, float(wanted["aux_loss"][0]), places=5, msg="aux_loss")
                back = choir.route_backward(given["scores"], given["cotangent"], router, **words)
                np.testing.assert_allclose(back, wanted["dscores"], rtol=1e-4, atol=1e-5, err_msg="dscores")
                back = choir.route_backward(given["scores"], None, router, aux_weight=1.0, **words)
                np.testing.assert_allclose(back, wanted["daux"], rtol=1e-4, atol=1e-6, err_msg="daux")
                count += 1
        self.assertGreater(count, 60)

    def test_a_fault_of_a_file_names_file_vector_and_field(self):
        """As vectors are read by choir.conformance, and by this test."""
        data = (testing.SOURCE / "vectors" / "topk.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")

        def changed(change):
            header = json.loads(data[8:start])
            change(header)
            text = json.dumps(header).encode()
            return len(text).to_bytes(8, "little") + text + data[start:]

        def case_of(change):
            def do(header):
                options = json.loads(header["__metadata__"]["random.K1"])
                header["__metadata__"]["random.K1"] = json.dumps(change(options))

            return changed(do)

        gates, metadata = "random.K1.gates", "__metadata__"
        faults = (
            (b"", "header"),
            (data[: start // 2], "header"),
            (data[:-9], ": "),
            (b"<html>404</html>" * 100, "header"),
            (changed(lambda header: header.pop(metadata)), "__metadata__: there is no text format"),
            (changed(lambda header: header[metadata].pop("cases")), "__metadata__: there is no text cases"),
            (changed(lambda header: header[metadata].pop("random.K1")), "there is no text random.K1"),
            (changed(lambda header: header[metadata].update({"random.K1": "{"})), "random.K1: the metadata are not JSON"),
            (changed(lambda header: header[metadata].update(version="3")), "__metadata__: format is choir-routing-vectors, version 3"),
            (case_of(lambda options: {}), "random.K1: the metadata have no field matrix"),
            (case_of(lambda options: {**options, "matrix": "no"}), "random.K1: matrix no is not in the file"),
            (changed(lambda header: header.pop(gates)), "random.K1: tensor random.K1.gates is not in the file"),
            (changed(lambda header: header[gates]["shape"].reverse()), "random.K1: gates is float32 [6, "),
            (changed(lambda header: header[gates].update(shape=[3, 5])), "random.K1: gates: cannot reshape"),
            (changed(lambda header: header[gates].update(dtype="I32")), "random.K1: gates is int32 "),
            (changed(lambda header: header[gates].update(dtype="F8")), "header: is not that of safetensors"),
        )
        with tempfile.TemporaryDirectory() as at:
            path = pathlib.Path(at, "mine.safetensors")
            for bytes_of, message in faults:
                path.write_bytes(bytes_of)
                with self.subTest(message), self.assertRaises(VectorError) as raised:
                    list(read(path))
                self.assertIn(f"{path}: ", str(raised.exception))
                self.assertIn(message, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
