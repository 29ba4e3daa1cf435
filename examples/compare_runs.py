"""The last evaluation of some runs, and the loss of their steps, as one table; TensorBoard's files with --tensorboard DIR.

python3 examples/compare_runs.py run1 run2 ...
"""

import os
import sys

import choir

words = sys.argv[1:]
log = words.pop(words.index("--tensorboard") + 1) if "--tensorboard" in words else None
runs = [word for word in words if word != "--tensorboard"]
print(f"{'run':30} {'step':>8} {'train':>8} {'batch':>8} {'causal':>8}")
for run in runs:
    steps, evaluations = choir.runs.metrics(run), choir.runs.evaluations(run)
    last = evaluations[-1] if len(evaluations) else None
    causal = (
        last["threshold_loss"] if last is not None and "threshold_loss" in evaluations.dtype.names else float("nan")
    )
    held_out = last["loss"] if last is not None else float("nan")
    print(f"{run:30} {steps['step'][-1]:8.0f} {steps['loss'][-20:].mean():8.4f} {held_out:8.4f} {causal:8.4f}")
    if log:
        from torch.utils.tensorboard import SummaryWriter  # with the package tensorboard

        with SummaryWriter(os.path.join(log, os.path.basename(os.path.abspath(run)))) as writer:
            for row in steps:
                writer.add_scalar("train/loss", row["loss"], int(row["step"]))
            for row in evaluations:
                writer.add_scalar("heldout/loss", row["loss"], int(row["step"]))
