"""Mixtral and OLMoE trained by transformers and PyTorch, and by choir: from the same weights, on the same tokens, the
same losses at every step, up to what one rounding does. Where two experts of a token nearly tie, a rounding decides.
There two runs of transformers whose first weights differ by one rounding part as well: a third run measures how far."""

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
KINDS = {
    "mixtral": ("MixtralConfig", dict(num_local_experts=8)),
    "olmoe": ("OlmoeConfig", dict(num_experts=8, pad_token_id=None)),  # its default never trains token 1's embedding
}
ADAMW = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0)


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


def rounded(model):
    """The model with each weight moved by one rounding or none."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 2**-23 * torch.randint(-1, 2, weight.shape))
    return model


def their_losses(model, coefficient):
    """Cross-entropy and balance loss of every step; these are means over layers before they are multiplied."""
    decays = [p for p in model.parameters() if p.dim() > 1]
    stays = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decays, "weight_decay": ADAMW["weight_decay"]}, {"params": stays, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["learning_rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=1e-8)
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
        twin = np.array(list(their_losses(rounded(make(kind, layers)[0]), coefficient)))
        off, noise = (np.maximum.accumulate(np.abs(theirs - other).max(1)) for other in (ours, twin))
        print(f"{kind}, {layers} layers, coefficient {coefficient}: loss {theirs[0, 0]:.4f} to {theirs[-1, 0]:.4f},")
        at = [9, 49, -1]
        print("  greatest difference up to steps 10, 50, 200:", off[at], "of one rounding:", noise[at])
        self.assertLess(theirs[-1, 0], theirs[0, 0] - 1)
        self.assertLess((off - 10 * noise).max(), 1e-5)

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
