"""Random models of Hugging Face's transformers as checkpoints of choir: the same logits, and refusals by name."""

import json
import shutil
import subprocess
import unittest

import numpy as np

import choir
import exported
import testing

try:
    import byte_level
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    transformers, lack = None, error.name

SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3, max_position_embeddings=64)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=2)
MOE = dict(moe_intermediate_size=32, num_experts_per_tok=3, head_dim=16)
ROPE = {"rope_type": "default", "rope_theta": 5000}
GLM = dict(
    n_routed_experts=8, first_k_dense_replace=1, use_qk_norm=True, routed_scaling_factor=2.5, num_mtp_layers=0
)
KINDS = {
    "llama": ("LlamaConfig", dict(head_dim=32)),
    "tied": ("LlamaConfig", dict(tie_word_embeddings=True, rope_parameters=ROPE)),
    "mistral": ("MistralConfig", dict(sliding_window=None, head_dim=16)),
    "qwen3": ("Qwen3Config", dict(head_dim=16)),
    "mixtral": ("MixtralConfig", dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("Qwen3MoeConfig", dict(num_experts=8, norm_topk_prob=False, **MOE)),
    "qwen3_moe_shares": ("Qwen3MoeConfig", dict(num_experts=8, norm_topk_prob=True, **MOE)),
    "qwen3_moe_dense": ("Qwen3MoeConfig", dict(num_experts=8, mlp_only_layers=[0, 2], norm_topk_prob=True, **MOE)),
    "olmoe": ("OlmoeConfig", dict(num_experts=8, num_experts_per_tok=3)),
    "glm4_moe": ("Glm4MoeConfig", {**GLM, **MOE}),
}


def make(kind):
    """Saved at DIRECTORY/hf-KIND: no norm is 1, no bias 0, and logits are of some size."""
    name, fields = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, name)(**SIZES, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
        for buffer_name, buffer in model.named_buffers():
            if "correction" in buffer_name:
                buffer.add_(0.1 * torch.randn_like(buffer))
    folder = testing.directory() / f"hf-{kind}"
    model.save_pretrained(folder)
    return model, folder


@unittest.skipIf(transformers is None, "transformers")
class Imported(unittest.TestCase):
    def test_every_kind_gives_the_same_logits(self):
        tokens = np.random.default_rng(1).integers(0, 320, (4, 32))
        for kind in KINDS:
            with self.subTest(kind):
                model, folder = make(kind)
                out = testing.directory() / f"from-{kind}"
                testing.program("import", folder, "--out", out)
                with torch.no_grad():
                    theirs = model(torch.from_numpy(tokens)).logits.numpy()
                ours = exported.choir_logits(out, tokens)
                print(f"{kind}: {np.abs(theirs - ours).max():.1e} of {np.abs(ours).max():.2f}")
                np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())
                self.goes_out_again(out)

    def goes_out_again(self, checkpoint):
        """And comes back as the same bytes."""
        folder, again = (checkpoint.with_name(checkpoint.name + end) for end in ("-hf", "-again"))
        testing.program("export", checkpoint, "--format", "hf", "--out", folder, "--sequences", 0)
        testing.program("import", folder, "--out", again)
        for file in ("config.json", "model.safetensors"):
            self.assertEqual((checkpoint / file).read_bytes(), (again / file).read_bytes(), file)

    def test_refuses_by_name(self):
        _, folder = make("llama")
        whole = json.loads((folder / "config.json").read_text())
        for key, value, said in (
            ("attention_bias", True, '"attention_bias" is true'),
            ("hidden_act", "gelu", '"hidden_act" is "gelu"'),
            ("model_type", "gpt2", '"model_type" is "gpt2"'),
            ("model_type", "qwen2_moe", '"model_type" is "qwen2_moe": its shared expert has a gate'),
            ("clip_qkv", 8, '"clip_qkv" is 8'),
            ("rope_scaling", {"type": "linear", "factor": 2}, '"rope_scaling" is'),
            ("logit_scale", 2, '"logit_scale" is not known'),
            ("rope_theta", 7, '"rope_theta" is 7, and 10000'),
            ("partial_rotary_factor", 0.5, '"partial_rotary_factor" is 0.5'),
            ("tie_word_embeddings", True, "tensor 'lm_head.weight' is not 'model.embed_tokens.weight'"),
            ("intermediate_size", 95, "mlp.gate_proj.weight' is not of the shape"),
            ("num_hidden_layers", 2, "has no place"),
            ("sliding_window", 32, '"sliding_window" is 32'),
            ("num_hidden_layers", 4, "is missing"),
            ("mlp_only_layers", [1], '"mlp_only_layers": choir reads it of qwen3_moe only'),
        ):
            with self.subTest(key):
                (folder / "config.json").write_text(json.dumps({**whole, key: value}))
                out = testing.directory() / "refused"
                with self.assertRaises(subprocess.CalledProcessError) as caught:
                    testing.program("import", folder, "--out", out)
                self.assertIn(said, caught.exception.stderr)
                self.assertFalse(out.exists())

    def test_tokens_of_tokenizer_json(self):
        """As Llama 2 has it, and as LlamaTokenizer of today writes it: the tokens that tokenizers gives."""
        at, lines = testing.run().parent, exported.lines(6000)
        testing.program("tokenizer", "train", "--vocab-size", 900, "--out", at / "words.model", at / "book.txt")
        testing.program(
            "init", exported.run("llama") / "config.json", "--tokenizer", at / "words.model", "--out", at / "words"
        )
        testing.program("export", at / "words", "--format", "hf", "--out", at / "words-hf", "--sequences", 0)
        older = json.loads((at / "words-hf" / "tokenizer.json").read_text(encoding="utf-8"))
        vocab, rank = older["model"]["vocab"], {}
        for left, right in older["model"]["merges"]:
            rank.setdefault(left + right, len(rank))
        merges = sorted(older["model"]["merges"], key=lambda pair: (rank["".join(pair)], -len(pair[0])))
        front = {"type": "Prepend", "prepend": "▁"}
        older["model"]["merges"] = [" ".join(pair) for pair in merges]
        older["normalizer"] = {"type": "Sequence", "normalizers": [front, older["normalizer"]]}
        (at / "older.json").write_text(json.dumps(older), encoding="utf-8")
        transformers.LlamaTokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges]).save_pretrained(
            at / "today"
        )
        for file, always in ((at / "older.json", True), (at / "today" / "tokenizer.json", False)):
            theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
            testing.program("tokenizer", "import", file, "--out", at / "imported.model")
            ours = choir.Tokenizer(at / "imported.model")
            for line in lines:  # choir puts no space in front
                mine = line if not line or (line[0] == " " and not always) else " " + line
                self.assertEqual(
                    theirs(line, add_special_tokens=False)["input_ids"], ours.encode(mine).tolist(), line
                )

    def test_tokens_of_byte_level_bpe(self):
        """Of every family those of tokenizers, and the text comes back."""
        lines = exported.lines(2000) + byte_level.odd_lines(2000) + byte_level.characters(0, 0x20000)
        for family, (_, nfc, *_) in byte_level.FAMILIES.items():
            with self.subTest(family):
                file = testing.directory() / f"{family}.json"
                byte_level.train(family, lines, 2000).save(str(file))
                testing.program("tokenizer", "import", file, "--out", file.with_suffix(".model"))
                self.assertEqual(file.read_bytes(), file.with_suffix(".model").read_bytes())
                theirs, ours = tokenizers.Tokenizer.from_file(str(file)), choir.Tokenizer(file)
                for line, wanted in zip(lines, theirs.encode_batch(lines, add_special_tokens=False)):
                    ids = ours.encode(line).tolist()
                    self.assertEqual(wanted.ids, ids, line)
                    self.assertEqual(theirs.normalizer.normalize_str(line) if nfc else line, ours.decode(ids))

    def test_text_to_logits_with_byte_level_bpe(self):
        """The model has more ids than the tokenizer has tokens, as published ones do; config.json names the end."""
        for kind, family, end in (("olmoe", "olmoe", "<|endoftext|>"), ("qwen3_moe", "qwen", "<|im_end|>")):
            with self.subTest(kind):
                model, plain = make(kind)
                folder, out = testing.directory() / f"text-{kind}", testing.directory() / f"from-text-{kind}"
                shutil.copytree(plain, folder)
                byte_level.train(family, exported.lines(200), 290).save(str(folder / "tokenizer.json"))
                theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
                config = json.loads((folder / "config.json").read_text())
                config["eos_token_id"] = theirs.convert_tokens_to_ids(end)
                (folder / "config.json").write_text(json.dumps(config))
                testing.program("import", folder, "--out", out)
                self.compare_text(model, theirs, out)
                again = out.with_name(out.name + "-again")
                testing.program("export", out, "--format", "hf", "--out", again, "--sequences", 0)
                self.assertEqual((folder / "tokenizer.json").read_bytes(), (again / "tokenizer.json").read_bytes())
                self.assertEqual(json.loads((again / "config.json").read_text())["eos_token_id"], config["eos_token_id"])
                self.tokens_by_default(folder, out)
                self.trained_goes_out_again(out)

    def tokens_by_default(self, folder, checkpoint):
        """A post_processor that begins every text with a token, as Llama 3's does: AutoTokenizer gives its makers' ids,
        though choir adds no token. After training by choir it gives choir's ids."""
        file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        name = file["added_tokens"][0]["content"]
        single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        file["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single,
            "special_tokens": {name: {"id": name, "ids": [file["added_tokens"][0]["id"]], "tokens": [name]}},
        }
        odd, back, again = (folder.with_name(folder.name + end) for end in ("-post", "-post-choir", "-post-again"))
        shutil.copytree(folder, odd)
        (odd / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
        testing.program("import", odd, "--out", back)
        testing.program("export", back, "--format", "hf", "--out", again, "--sequences", 0)
        (back / "imported.tokenizer.json").unlink()
        testing.program("export", back, "--format", "hf", "--out", again.with_name(again.name + "-own"), "--sequences", 0)
        theirs, there, own = (
            transformers.AutoTokenizer.from_pretrained(path) for path in (odd, again, again.with_name(again.name + "-own"))
        )
        ours = choir.Tokenizer(checkpoint / "tokenizer.model")
        for line in exported.lines(50):
            self.assertEqual(there(line)["input_ids"], theirs(line)["input_ids"], line)
            self.assertEqual(own(line)["input_ids"], ours.encode(line).tolist(), line)

    def trained_goes_out_again(self, checkpoint):
        """As the architecture that it came as: no price keeps its place."""
        text, data, run = (checkpoint.with_name(checkpoint.name + end) for end in (".txt", "-data", "-run"))
        text.write_text("\n".join(exported.lines(200)), encoding="utf-8")
        testing.program("data", "build", "--out", data, "--tokenizer", checkpoint, text)
        testing.program(
            "train", "--init-from", checkpoint, "--data", data, "--out", run, "--set", "steps=2", "--set", "sequence_length=32"
        )
        testing.program("export", run, "--format", "hf", "--out", run / "hf", "--sequences", 0)
        folders = (run / "hf", checkpoint.with_name(checkpoint.name + "-again"))
        names = [json.loads((folder / "config.json").read_text()) for folder in folders]
        self.assertEqual(names[0]["architectures"], names[1]["architectures"])

    def compare_text(self, model, theirs, checkpoint):
        """Logits, greedy text, and likelihoods of a text."""
        text = "It's 2025: kalomi tensur,  caf\u00e9\n\nand 👩‍🔬 <|endoftext|> loka"
        ids = theirs(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits
            greedy = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=[], pad_token_id=0)
        with choir.Model.load(checkpoint, compute="fp32") as ours:
            ours.routing = "threshold"
            self.assertEqual(ids[0].tolist(), ours.tokenizer.encode(text).tolist())
            off = np.abs(ours.forward(ids.numpy().astype(np.int32)).logits - logits.numpy()).max()
            self.assertLess(off, 2e-5 * np.abs(logits.numpy()).max())
            made = ours.generate([text], max_tokens=12, temperature=0)[0].tokens.tolist()
            self.assertEqual(greedy[0, ids.shape[1] :].tolist()[: len(made)], made)
            self.assertTrue(made)
        request = json.dumps({"context": "It's 2025:", "continuation": " kalomi tensur"})
        whole = theirs("It's 2025: kalomi tensur", return_tensors="pt", add_special_tokens=False)["input_ids"]
        begin = len(theirs("It's 2025:", add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            log = model(whole).logits.log_softmax(-1)[0]
        wanted = sum(log[i - 1, whole[0, i]].item() for i in range(begin, whole.shape[1]))
        (testing.directory() / "request.jsonl").write_text(request + "\n")
        (testing.directory() / "page.txt").write_text(text, encoding="utf-8")
        score = testing.program("score", checkpoint, "--requests", testing.directory() / "request.jsonl")
        self.assertAlmostEqual(json.loads(score)["log_likelihood"], wanted, delta=1e-3)
        for words in (
            ["generate", checkpoint, "--prompt", text, "--max-tokens", 12],
            ["eval", checkpoint, "--text", testing.directory() / "page.txt"],
            ["inspect", checkpoint, "--text", testing.directory() / "page.txt", "--out", f"{checkpoint}.html"],
        ):
            self.assertTrue(testing.program(*words))


if transformers is None:
    print(f"NOT TESTED: choir import: {lack} is not installed")
