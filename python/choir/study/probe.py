"""Linear probes: the accuracy of a linear classifier on the hidden states of a model that was not trained on the
task (Alain and Bengio 2016). The features of a text are the hidden states before the head, with threshold routing:
that of its last token, and the mean over all tokens. They are standardized, and multinomial logistic regression is
fitted on at most ROWS rows of the training set, spread evenly."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Optional

import numpy as np
import scipy.optimize

from .. import Model, _files
from . import StudyError
from .recipe import ROOT, read

BATCH, ROWS, RIDGE = 32, 12000, 1e-3


def _rows(path: pathlib.Path, label: list[Any]) -> list[dict[str, str]]:
    """Rows of JSON lines or TSV (tabs, no quoting; without a header columns have numbers); malformed rows are
    skipped."""
    lines = _files.read_text(path, given=True).rstrip("\n").split("\n")
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in lines]
        return [{key: json.dumps(v) if isinstance(v, bool) else str(v) for key, v in row.items()} for row in rows]
    rows = [line.split("\t") for line in lines]
    head = rows.pop(0) if set(label) & set(rows[0]) else [str(i + 1) for i in range(len(rows[0]))]
    return [dict(zip(head, row)) for row in rows if len(row) == len(head)]


def texts(task: dict[str, Any], directory: pathlib.Path, split: str) -> tuple[list[str], np.ndarray]:
    """The template's text of each row that has a label, and the labels' indices."""
    path = next((directory / file for file in task["splits"][split] if (directory / file).exists()), None)
    if not path:
        raise StudyError(f"{directory}: has none of {', '.join(task['splits'][split])}")
    number = {value: i for i, label in enumerate(task["labels"]) for value in label["values"]}
    made, labels = [], []
    for row in _rows(path, task["label"]):

        def value(names: list[Any]) -> Optional[str]:
            return next((row[str(name)].strip() for name in names if str(name) in row), None)

        values = {key: value(names) for key, names in task["columns"].items()}
        label = number.get(value(task["label"]))
        if label is not None and None not in values.values():
            made.append(task["template"].format(**values))
            labels.append(label)
    return made, np.array(labels)


def features(model: Model, given: list[str]) -> np.ndarray:
    """The features of texts, [texts, 2 d]. The logits are the head's rows times the hidden state, which is
    recovered by least squares. Of a text that is longer than the sequences in training, only the end is used."""
    head = model.get("head.weight" if "head.weight" in model.parameters() else "embed.weight").astype(float)
    back = np.linalg.pinv(head).T
    ids = [model.tokenizer.encode(text)[-model.config["train.sequence_length"] :] for text in given]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    made = np.empty((len(ids), 2 * back.shape[1]))
    for begin in range(0, len(ids), BATCH):
        some = order[begin : begin + BATCH]
        length = -(-len(ids[some[-1]]) // 16) * 16
        tokens = np.zeros((BATCH, length), np.int32)  # causal attention: padding at the end has no effect
        for row, i in enumerate(some):
            tokens[row, : len(ids[i])] = ids[i]
        logits = model.forward(tokens).logits
        for row, i in enumerate(some):
            own = logits[row, : len(ids[i])]
            made[i] = (np.stack([own.mean(axis=0), own[-1]]) @ back).ravel()
    return made


def fit(x: np.ndarray, y: np.ndarray, labels: int) -> np.ndarray:
    """Weights [features + 1, labels] of multinomial logistic regression; the last row has the intercepts. It has an
    L2 penalty, because many weights separate the labels of a small task."""
    x = np.column_stack([x, np.ones(len(x))])
    hot = np.eye(labels)[y]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(-1, labels)
        z = x @ w
        z -= z.max(axis=1, keepdims=True)
        total = np.exp(z).sum(axis=1, keepdims=True)
        ridge = np.vstack([RIDGE * w[:-1], np.zeros(labels)])
        slope = x.T @ (np.exp(z) / total - hot) / len(x) + ridge
        return float(np.log(total).mean() - (z * hot).sum() / len(x) + (ridge * w).sum() / 2), slope.ravel()

    start = np.zeros(x.shape[1] * labels)
    return scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x.reshape(-1, labels)


def describe(task: str) -> dict[str, Any]:
    """A task by its name, or by the file of a description, as `choir finetune --task` takes it."""
    return read(task if "/" in task or task.endswith(".json") else ROOT / "tasks" / f"{task}.json")


def accuracy(run: pathlib.Path, name: str, directory: pathlib.Path, threads: int) -> float:
    """The probe's accuracy on the dev set of a task, with features of a run's newest checkpoint."""
    task = describe(name)
    with Model.load(run, threads=threads) as model:
        model.routing = "threshold"
        (x, y), (dev, right) = (texts(task, directory, split) for split in ("train", "dev"))
        some = np.unique(np.linspace(0, len(x) - 1, ROWS).astype(int))
        x, y, dev = features(model, [x[i] for i in some]), y[some], features(model, dev)
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-12
    weights = fit((x - mean) / deviation, y, len(task["labels"]))
    guess = ((dev - mean) / deviation) @ weights[:-1] + weights[-1]
    return float((guess.argmax(axis=1) == right).mean())
