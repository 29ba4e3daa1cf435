"""Training steps on your own batches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Optional

from . import _native as native
from ._handle import Handle
from ._native import ffi, lib
from .config import Config, Path
from .model import Model
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .fields import TrainerFields


@dataclasses.dataclass(frozen=True)
class Step:
    """The result of a step. loss: mean cross-entropy in nats over `targets` positions, with batch routing."""

    step: int
    targets: int
    loss: float
    aux_loss: float
    learning_rate: float
    gradient_norm: float
    dropped: float
    unrouted: float
    imbalance: float
    z_loss: float
    fill: float
    fullest: tuple[float, ...]  # of 8, 16, 32 devices

    @property
    def rate(self) -> float:
        """The name of learning_rate before 0.6."""
        return self.learning_rate


class Trainer(Handle):
    """A model being trained by the optimizer and schedule of its config; options by name change the config's "train":
    Trainer(model, learning_rate=1e-3, optimizer="adamw")."""

    _free = "choir_trainer_free"

    def __init__(self, model: Model, **options: Unpack[TrainerFields]):
        config: Config = native.wanted(model, Model).config
        config.update({"train." + key: value for key, value in options.items()})
        address = ffi.new("choir_trainer **")
        with model.use() as used:
            native.check(lib.choir_trainer_create(used, config.address, address))
        super().__init__(address[0], model.address)
        self.model = model

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a batch: (accumulate x batch_sequences, tokens of a sequence)."""
        return lib.choir_trainer_sequences(self.address), lib.choir_trainer_sequence_length(self.address)

    def step(self, tokens, targets=None) -> Step:
        """One step on tokens, ids of `shape`. targets: the token that each position predicts, negative for none;
        None: the next token. NumericError: the loss or a gradient is not finite; no weight is updated after that.
        """
        given = native.ids(tokens, *self.shape)
        wanted = None if targets is None else native.ids(targets, *self.shape)
        r = ffi.new("choir_trainer_result *")
        with self.use() as address, self.model.use():
            native.check(lib.choir_trainer_step(address, native.pointer(given), native.pointer(wanted), r))
        return Step(**native.record(r))

    def save(self, path: Path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint with the optimizer's state; `choir eval` and Model.load read it, `resume` continues
        from it."""
        with self.use() as address, self.model.use():
            native.check(lib.choir_trainer_save(address, self.model._words(tokenizer), native.text(path)))

    def resume(self, path: Path) -> None:
        """Restores weights, optimizer and step count from a checkpoint of `save`: the next step is bit-identical."""
        with self.use() as address, self.model.use():
            native.check(lib.choir_trainer_resume(address, native.text(path)))

    def __repr__(self) -> str:
        return f"Trainer({self.model!r})"
