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
    """The result of a training step."""

    step: int
    """number of this step, from 1"""
    targets: int
    """number of targets, over which the loss is a mean"""
    loss: float
    """mean cross-entropy in nats, with batch routing, or threshold routing after router.threshold_after"""
    aux_loss: float
    """load-balancing loss, weighted and summed over layers"""
    learning_rate: float
    """learning rate of this step"""
    gradient_norm: float
    """norm of the gradients before clipping"""
    dropped: float
    """fraction of choices that were dropped because the expert was full"""
    unrouted: float
    """fraction of tokens without an expert"""
    imbalance: float
    """max load divided by mean load, in the layer where this is largest"""
    z_loss: float
    """z-loss of the routers' logits, weighted and summed over layers"""
    fill: float
    """mean load of an expert divided by its capacity"""
    fullest: tuple[float, ...]
    """max load of a device divided by the mean, if the experts were distributed over 8, 16 and 32 devices"""

    @property
    def rate(self) -> float:
        """The name of learning_rate before 0.6."""
        return self.learning_rate


class Trainer(Handle):
    """Trains a model step by step on your own batches, with the optimizer and schedule of its config.

    Args:
        model: a choir.Model. It must not have another trainer.
        options: fields of the config's "train" section that are changed, by name.

    Raises ArgumentError for a config that is refused, BusyError for a model that has a trainer, and
    OutOfMemoryError.

    Example:
        trainer = choir.Trainer(model, learning_rate=1e-3, optimizer="adamw")
        print(trainer.step(tokens).loss)                                            # tokens of trainer.shape"""

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
        """The shape of a batch: (accumulate * batch_sequences, tokens per sequence)."""
        return lib.choir_trainer_sequences(self.address), lib.choir_trainer_sequence_length(self.address)

    def step(self, tokens, targets=None) -> Step:
        """Runs one training step: forward and backward, then updates of the weights and of the routers' state.

        Args:
            tokens: token ids of `shape`.
            targets: of `shape`, the token that each position must predict, negative for no target. None: the next
                token of the sequence.

        Returns a `Step`.

        Raises ArgumentError, with no effect, for tokens outside the vocabulary, and NumericError for a loss or a
        gradient that is not finite; tensors from this one on are not updated."""
        given = native.ids(tokens, *self.shape)
        wanted = None if targets is None else native.ids(targets, *self.shape)
        r = ffi.new("choir_trainer_result *")
        with self.use() as address, self.model.use():
            native.check(lib.choir_trainer_step(address, native.pointer(given), native.pointer(wanted), r))
        return Step(**native.record(r))

    def save(self, path: Path, tokenizer: Optional[Tokenizer] = None) -> None:
        """Writes a checkpoint directory with the optimizer's state and `tokenizer` or, if None, the model's.
        `choir eval` and Model.load read it, and `resume` continues from it."""
        with self.use() as address, self.model.use():
            native.check(lib.choir_trainer_save(address, self.model._words(tokenizer), native.text(path)))

    def resume(self, path: Path) -> None:
        """Restores weights, optimizer state and step count from a checkpoint of `save`. The next step is
        bit-identical to the one that would have followed."""
        with self.use() as address, self.model.use():
            native.check(lib.choir_trainer_resume(address, native.text(path)))

    def __repr__(self) -> str:
        return f"Trainer({self.model!r})"
