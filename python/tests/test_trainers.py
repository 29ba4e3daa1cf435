"""Mixtral and OLMoE trained by transformers and PyTorch, and by choir: from the same weights, on the same tokens, the
same losses at every step."""

import unittest

import numpy as np

import choir
import testing

try:
    import torch
    import transformers
except ImportError as error:
    transformers = None
    print(f"NOT TESTED: training beside transformers: {error.name} is not installed")

STEPS, B, T, K = 200, 4, 32, 2
SIZES = dict(vocab_size=320, hidden_size=128, intermediate_size=64, max_position_embeddings=T)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=4, num_experts_per_tok=K)
KINDS = {"mixtral": ("MixtralConfig", dict(num_local_experts=8)), "olmoe": ("OlmoeConfig", dict(num_experts=8))}
ADAMW = dict(rate=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0)


def batches():
    """Sequences that can be learned: words drawn with other words behind them."""
    draw = np.random.default_rng(2)
    follows = draw.integers(0, 320, (320, 4))
    for _ in range(STEPS):
        tokens = draw.integers(0, 320, (B, T))
        for t in range(1, T):
            tokens[:, t] = follows[tokens[:, t - 1], draw.integers(0, 4, B)]
        yield tokens


def make(kind, layers):
    """A model of transformers with random weights, and the folder that it is saved in."""
    name, fields = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, name)(**SIZES, num_hidden_layers=layers, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    folder = testing.directory() / f"train-{kind}-{layers}"
    model.save_pretrained(folder)
    return model, folder


def their_losses(model, coefficient):
    """Cross-entropy and balance loss of every step; these are means over layers before they are multiplied."""
    decays = [p for p in model.parameters() if p.dim() > 1]
    stays = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decays, "weight_decay": ADAMW["weight_decay"]}, {"params": stays, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=1e-8)
    model.config.router_aux_loss_coef = model.router_aux_loss_coef = coefficient
    model.train()
    for tokens in batches():
        given = torch.from_numpy(tokens)
        out = model(given, labels=given, output_router_logits=coefficient > 0)
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_norm"])
        optimizer.step()
        balance = coefficient * float(out.aux_loss.detach()) if coefficient else 0.0
        yield float(out.loss.detach()) - balance, balance


def our_losses(folder, weight):
    checkpoint = folder.with_name(folder.name + "-imported")
    testing.program("import", folder, "--out", checkpoint)
    imported = choir.Model.load(checkpoint)
    config = imported.config
    config.set("model.router.aux_loss_weight", weight)
    model = choir.Model(config)
    for name, values in imported.state().items():
        model.set(name, values)
    trainer = choir.Trainer(model, optimizer="adamw", batch_sequences=B, sequence_length=T, **ADAMW)
    for tokens in batches():
        step = trainer.step(tokens)
        yield step.loss, step.aux_loss


@unittest.skipIf(transformers is None, "transformers")
class Trained(unittest.TestCase):
    def same(self, kind, layers, coefficient):
        model, folder = make(kind, layers)
        theirs = np.array(list(their_losses(model, coefficient)))
        ours = np.array(list(our_losses(folder, K * coefficient)))
        off = np.abs(theirs - ours).max(0)
        print(f"{kind}, {layers} layers, coefficient {coefficient}: loss {theirs[0, 0]:.4f} to {theirs[-1, 0]:.4f}", off)
        self.assertLess(theirs[-1, 0], theirs[0, 0] - 1)
        self.assertLess(off.max(), 1e-4)

    def test_without_the_balance_loss(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.same(kind, 4, 0.0)

    def test_with_it_on_one_layer(self):
        """With more layers it is another loss there."""
        for kind in KINDS:
            with self.subTest(kind):
                self.same(kind, 1, 0.02)


if __name__ == "__main__":
    unittest.main()
