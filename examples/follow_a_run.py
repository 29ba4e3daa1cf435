"""A run whose curves TensorBoard or Weights & Biases show while it trains.

python3 examples/follow_a_run.py tensorboard CONFIG DATA RUN     # pip install tensorboardX; tensorboard --logdir RUN
python3 examples/follow_a_run.py wandb CONFIG DATA RUN           # pip install wandb; WANDB_MODE=offline needs no account
"""

import math
import sys

import choir

SHOWN = {
    "step": ("loss", "learning_rate", "gradient_norm", "imbalance", "unrouted", "tokens_per_second"),
    "eval": ("loss", "bits_per_byte", "threshold_loss"),
}


def scalars(event):
    """Of an event, what is a number: {"eval/loss": 2.1, ...}."""
    kind = event["kind"]
    return {f"{kind}/{name}": event[name] for name in SHOWN.get(kind, ()) if math.isfinite(event[name])}


def tensorboard(out):
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(out)

    def progress(event):
        for name, value in scalars(event).items():
            writer.add_scalar(name, value, event["step"])
        writer.flush()

    return progress


def wandb(out):
    import wandb

    run = wandb.init(project="choir", name=out)

    def progress(event):
        found = scalars(event)
        if found:
            run.log(found, step=event["step"])

    return progress


if __name__ == "__main__":
    which, config, data, out = sys.argv[1:]
    progress = {"tensorboard": tensorboard, "wandb": wandb}[which](out)
    last = choir.train(config=config, data=data, out=out, progress=progress)
    print(f"step {last['step']}: held-out loss {last['loss']:.4f}, {last['bits_per_byte']:.3f} bits per byte")
