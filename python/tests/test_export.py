"""What choir export writes, in Hugging Face's transformers: the same logits and the same tokens."""

import json
import unittest

import numpy as np

import choir
import exported
import testing

try:
    import torch
    import transformers
except ImportError as error:
    transformers, lack = None, error.name


def folder_logits(folder, tokens):
    """Of transformers; narrow experts are for its plain loop."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    )
    with torch.no_grad():
        return type(model).__name__, model.eval()(torch.from_numpy(tokens)).logits.numpy()


@unittest.skipIf(transformers is None, "transformers")
class Exported(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        self.tokens = np.random.default_rng(1).integers(0, 320, (4, 32))

    def test_every_kind_gives_the_same_logits(self):
        for kind, ((architecture, _), _) in exported.KINDS.items():
            if architecture is None:
                continue
            with self.subTest(kind):
                name, theirs = folder_logits(exported.export(kind, "hf"), self.tokens)
                ours = exported.choir_logits(exported.run(kind), self.tokens)
                self.assertEqual(name, architecture)
                self.assertGreater(np.abs(ours).max(), 0.5)
                print(f"{kind}: {np.abs(theirs - ours).max():.1e} of {np.abs(ours).max():.2f}")
                np.testing.assert_allclose(theirs, ours, atol=2e-5 * max(1, np.abs(ours).max()))

    def test_limits_the_experts_of_a_token(self):
        """K of the export is the cap of the run's own thresholds; without it the logits are others."""
        run, out = exported.run("choice"), testing.directory() / "limited"
        words = ["--format", "hf", "--out", out, "--experts-per-token", 1, "--json"]
        found = json.loads(testing.program("export", run, *words))
        self.assertGreater(found["tokens_cut"], 0.01)
        self.assertNotEqual(found["loss"], found["loss_cut"])
        self.assertIsNone(found["loss_written"])  # f32: nothing is rounded
        _, theirs = folder_logits(out, self.tokens)
        self.assertGreater(np.abs(theirs - exported.choir_logits(run, self.tokens)).max(), 1e-3)

    def test_bf16_loses_what_rounding_does(self):
        found = {}
        for dtype in ("f32", "bf16"):
            out = testing.directory() / f"as-{dtype}"
            words = ["--format", "hf", "--out", out, "--dtype", dtype, "--json"]
            found[dtype] = json.loads(testing.program("export", exported.run("choice"), *words))
            model = transformers.AutoModelForCausalLM.from_pretrained(out, experts_implementation="eager")
            self.assertEqual(str(model.dtype), {"f32": "torch.float32", "bf16": "torch.bfloat16"}[dtype])
        self.assertEqual(found["f32"]["loss"], found["bf16"]["loss"])
        self.assertNotEqual(found["bf16"]["loss_written"], found["bf16"]["loss_cut"])
        self.assertAlmostEqual(found["bf16"]["loss_written"], found["bf16"]["loss_cut"], places=2)

    def test_gives_the_same_tokens(self):
        at, lines = testing.run().parent, exported.lines(3000)
        for kind in ("bpe", "unigram", "char"):
            with self.subTest(kind):
                out, model = at / f"{kind}-folder", at / f"{kind}.model"
                testing.program(
                    "tokenizer", "train", "--type", kind, "--vocab-size", 320, "--out", model, at / "book.txt"
                )
                testing.program(
                    "init", exported.run("llama") / "config.json", "--tokenizer", model, "--out", at / kind
                )
                testing.program("export", at / kind, "--format", "hf", "--out", out, "--sequences", 0)
                theirs, ours = transformers.AutoTokenizer.from_pretrained(out), choir.Tokenizer(model)
                self.assertEqual(theirs.eos_token_id, ours.eos)
                for line in lines:
                    ids = theirs(line)["input_ids"]
                    self.assertEqual(ids, ours.encode(line).tolist(), line)
                    self.assertEqual(theirs.decode(ids), line)


if transformers is None:
    print(f"NOT TESTED: choir export in transformers: {lack} is not installed")
