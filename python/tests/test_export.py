"""What choir export writes, in Hugging Face's transformers and in llama.cpp: the same logits and the same tokens."""

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
try:
    import xllamacpp
except ImportError:
    xllamacpp = None


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

    def test_bf16_export_rounds(self):
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
                self.assertEqual(theirs(["ka", "ka ka"], padding=True)["attention_mask"][0][-1], 0)
                for line in lines:
                    ids = theirs(line)["input_ids"]
                    self.assertEqual(ids, ours.encode(line).tolist(), line)
                    self.assertEqual(theirs.decode(ids), line)


if transformers is None:
    print(f"NOT TESTED: choir export in transformers: {lack} is not installed")


def in_llama(path, **more):
    """A server of llama.cpp in this process. Exact caches: half precision alone moves logits by 0.04."""
    p = xllamacpp.CommonParams()
    p.model.path, p.verbosity, p.cache_ram_mib = str(path), -1, 0
    p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch = 128, 1, 64, 64
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for name, value in more.items():
        setattr(p, name, value)
    return xllamacpp.Server(p)


@unittest.skipIf(xllamacpp is None, "xllamacpp")
class InLlama(unittest.TestCase):
    """llama.cpp, as PyPI's xllamacpp has it: the probabilities of the token after a text."""

    KINDS = "llama qwen3 choice mixtral qwen3_moe olmoe every_other".split()

    def setUp(self):
        self.tokens = np.random.default_rng(1).integers(2, 320, (1, 24))

    def compare(self, kind, theirs):
        logits = exported.choir_logits(exported.run(kind), self.tokens)[0, -1].astype(np.float64)
        ours = logits - np.log(np.exp(logits).sum())
        self.assertGreater(np.ptp(ours), 1)
        print(f"{kind}: {np.abs(theirs - ours).max():.1e} of {np.abs(ours).max():.2f}")
        np.testing.assert_allclose(theirs, ours, atol=2e-5 * np.abs(ours).max())

    def test_causal_models_give_the_same_probabilities(self):
        for kind in self.KINDS:
            with self.subTest(kind):
                server = in_llama(exported.export(kind, "gguf"))
                said = server.handle_completions(
                    {"prompt": self.tokens[0].tolist(), "n_predict": 1, "temperature": 0, "n_probs": 320}
                )
                theirs = np.full(320, np.nan)
                for one in said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
                    theirs[one["id"]] = one["logprob"]
                self.compare(kind, theirs)

    def test_models_that_fill_masks_give_the_same_probabilities(self):
        """Of a diffusion model the server gives the last hidden state, and the head is the embedding."""
        self.tokens[0, 5::6] = 320  # the mask
        for kind in ("llada", "llada_moe", "rnd1"):
            with self.subTest(kind):
                last = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
                server = in_llama(exported.export(kind, "gguf"), embedding=True, pooling_type=last, embd_normalize=-1)
                said = server.handle_embeddings({"input": self.tokens[0].tolist()})
                with choir.Model.load(exported.run(kind), tokenizer=False) as model:
                    head = model.get("embed.weight")
                logits = head @ np.array(said["data"][0]["embedding"])
                self.compare(kind, logits - np.log(np.exp(logits).sum()))
