"""Training steps on one's own batches."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from . import _native as native
from ._native import c, lib
from .config import Config, Path
from .model import Model
from .tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step did. loss: mean cross-entropy in nats over `targets` positions, of batch routing."""

    step: int
    targets: int
    loss: float
    aux_loss: float
    rate: float
    gradient_norm: float
    dropped: float
    unrouted: float
    imbalance: float


class Trainer(native.Handle):
    """A model being trained by the optimizer and schedule of its config; options by name change the config's "train":
    Trainer(model, rate=1e-3, optimizer="adamw")."""

    _free = lib.choir_trainer_free

    def __init__(self, model: Model, **options: Any):
        super().__init__(None, model)
        config: Config = model.config
        for key, value in options.items():
            config.set("train." + key, value)
        address = c.c_void_p()
        native.check(lib.choir_trainer_create(model.address, c.byref(config.struct.train), c.byref(address)))
        self._address, self.model = address.value, model

    @property
    def shape(self) -> tuple[int, int]:
        """Of a batch: sequences (accumulate x batch_sequences), and tokens of each."""
        return lib.choir_trainer_sequences(self.address), lib.choir_trainer_length(self.address)

    def step(self, tokens, targets=None) -> Step:
        """One step on tokens, ids of `shape`. targets: what each position is to predict, negative for nothing; None: the next
        token. NumericError: the loss or a gradient is not finite, and nothing was updated from there on."""
        given = native.ids(tokens, *self.shape)
        wanted = None if targets is None else native.ids(targets, *self.shape)
        r = native.TrainerResult()
        native.check(
            lib.choir_trainer_step(self.address, native.pointer(given), native.pointer(wanted), c.byref(r))
        )
        return Step(*(getattr(r, field.name) for field in dataclasses.fields(Step)))

    def save(self, path: Path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint with the optimizer's state; `choir eval` and Model.load read it, `resume` goes on with it."""
        words = tokenizer or self.model.tokenizer
        native.check(lib.choir_trainer_save(self.address, words.address if words else None, native.text(path)))

    def resume(self, path: Path) -> None:
        """Takes weights, optimizer and number of steps from a checkpoint of `save`: the next step is bit-identical."""
        native.check(lib.choir_trainer_resume(self.address, native.text(path)))

    def close(self):
        super().close()
        self.model = None


def train_step(trainer: Trainer, tokens, targets=None) -> Step:
    """trainer.step(tokens, targets)."""
    return trainer.step(tokens, targets)
