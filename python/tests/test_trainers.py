"""Mixtral and OLMoE trained by transformers and PyTorch, and by choir: from the same weights and on the same tokens,
both select the same experts and have the same losses at every step. Both compute in float32, in another order: if two
experts of a token nearly tie, the last bits decide which is selected, and the two runs are different runs from there on.
So no run trains on a batch with such a token; transformers' probabilities decide."""

import unittest

import numpy as np

import choir
import testing
from choir._native import ffi, lib

try:
    import torch
    import transformers
except ImportError as error:
    transformers = None
    print(f"NOT TESTED: training beside transformers: {error.name} is not installed")

STEPS, B, T, K, E = 200, 4, 32, 2, 8
OFF = {50: 3e-5, STEPS: 1e-4}  # maximum difference of losses in nats up to these steps: rounding differences grow
TIE = 1e-4  # maximum difference of the probabilities of two experts that nearly tie
SIZES = dict(vocab_size=320, hidden_size=128, intermediate_size=64, max_position_embeddings=T)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=4, num_experts_per_tok=K)
KINDS = {
    "mixtral": ("MixtralConfig", dict(num_local_experts=E)),
    "olmoe": ("OlmoeConfig", dict(num_experts=E, pad_token_id=None)),  # its default never trains token 1's embedding
}
ADAMW = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, clip_norm=1.0)


def batches():
    """Sequences that can be learned: words drawn with other words behind them."""
    draw = np.random.default_rng(2)
    follows = draw.integers(0, 320, (320, 4))
    while True:
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


class Choices:
    """The choices of transformers' routers in the last forward pass: chosen [layers,n,E] bool; and margin, the minimum over
    tokens and layers of the probability of the last chosen expert minus that of the next one."""

    def __init__(self, model):
        self.layers = []
        model.register_forward_pre_hook(lambda *_: self.layers.clear())
        for name, gate in model.named_modules():
            if name.endswith(".gate"):
                gate.register_forward_hook(self._see)

    def _see(self, _gate, _given, made):
        logits = made[0] if isinstance(made, tuple) else made
        self.layers.append(logits.detach().float().softmax(-1).sort(-1, descending=True))

    @property
    def chosen(self):
        return np.stack([np.eye(E, dtype=bool)[found.indices[:, :K].numpy()].any(1) for found in self.layers])

    @property
    def margin(self):
        return min(float((found.values[:, K - 1] - found.values[:, K]).min()) for found in self.layers)


def our_choices(model, tokens):
    """[layers,n,E] bool, of a forward pass without a step."""
    layers = []

    @ffi.callback("void(void *, const choir_routing *)")
    def see(_, routing):
        chosen = np.zeros((routing.tokens, routing.experts), bool)
        for expert in range(routing.experts):
            for slot in range(routing.expert_begin[expert], routing.expert_begin[expert + 1]):
                chosen[routing.slot_token[slot], expert] = True
        layers.append(chosen)

    lib.choir_model_on_routing(model.address, see, ffi.NULL)
    try:
        model.forward(tokens, logits=False)
    finally:
        lib.choir_model_on_routing(model.address, ffi.NULL, ffi.NULL)
    return np.stack(layers)


def their_steps(model, coefficient):
    """Of every step: tokens, cross-entropy and balance loss, and choices. The balance loss is a mean over layers before it is
    multiplied."""
    choices = Choices(model)
    decays = [p for p in model.parameters() if p.dim() > 1]
    stays = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decays, "weight_decay": ADAMW["weight_decay"]}, {"params": stays, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["learning_rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=1e-8)
    model.config.router_aux_loss_coef = model.router_aux_loss_coef = coefficient
    model.train()
    done = 0
    for tokens in batches():
        given = torch.from_numpy(tokens)
        out = model(given, labels=given, output_router_logits=coefficient > 0)
        if choices.margin < TIE:
            continue
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip_norm"])
        optimizer.step()
        balance = coefficient * float(out.aux_loss.detach()) if coefficient else 0.0
        yield tokens, (float(out.loss.detach()) - balance, balance), choices.chosen
        done += 1
        if done == STEPS:
            return


def our_steps(folder, weight, each):
    """Of every step on these tokens: cross-entropy and balance loss, and choices."""
    checkpoint = folder.with_name(folder.name + "-imported")
    testing.program("import", folder, "--out", checkpoint)
    imported = choir.Model.load(checkpoint)
    config = imported.config
    config.set("model.router.aux_loss_weight", weight)
    model = choir.Model(config)
    for name, values in imported.state().items():
        model.set(name, values)
    trainer = choir.Trainer(model, optimizer="adamw", batch_sequences=B, sequence_length=T, **ADAMW)
    for tokens in each:
        chosen = our_choices(model, tokens)
        step = trainer.step(tokens)
        yield (step.loss, step.aux_loss), chosen


@unittest.skipIf(transformers is None, "transformers")
class Trained(unittest.TestCase):
    def same(self, kind, layers, coefficient):
        model, folder = make(kind, layers)
        each, theirs, their_choices = map(np.array, zip(*their_steps(model, coefficient)))
        ours, choices = map(np.array, zip(*our_steps(folder, K * coefficient, each)))
        other, off = (choices != their_choices).any((1, 2, 3)), np.abs(theirs - ours).max(1)
        told = ", ".join(f"{off[:step].max():.1e} up to step {step}" for step in OFF)
        print(f"{kind}, {layers} layers, coefficient {coefficient}: loss {theirs[0, 0]:.4f} to {theirs[-1, 0]:.4f}")
        print(f"  other choices in {other.sum()} steps; greatest difference {told}")
        self.assertLess(theirs[-1, 0], theirs[0, 0] - 1)
        self.assertEqual(np.flatnonzero(other).tolist(), [])
        for step, most in OFF.items():
            self.assertLess(off[:step].max(), most)

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
