"""SentencePiece tokenizers, as choir trains them."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from . import _native as native
from ._native import c, lib
from .config import Path


class Tokenizer(native.Handle):
    """A .model file, or that of a checkpoint, a run or built data: Tokenizer("run")."""

    _free = lib.choir_tokenizer_free

    def __init__(self, path: Path):
        super().__init__(None)
        address = c.c_void_p()
        native.check(lib.choir_tokenizer_load(native.text(path), c.byref(address)))
        self._address = address.value

    @classmethod
    def _own(cls, address) -> Tokenizer:
        made = cls.__new__(cls)
        native.Handle.__init__(made, address)
        return made

    @property
    def vocab_size(self) -> int:
        return lib.choir_tokenizer_vocab_size(self.address)

    @property
    def eos(self) -> int:
        """The token that ends every document."""
        return lib.choir_tokenizer_eos(self.address)

    def encode(self, text: str) -> np.ndarray:
        """Text to ids, int32 [count]."""
        raw, address, count = text.encode(), c.POINTER(c.c_int32)(), c.c_size_t()
        native.check(lib.choir_tokenizer_encode(self.address, raw, len(raw), c.byref(address), c.byref(count)))
        try:
            return native.copied(address, count.value, np.int32)
        finally:
            native.libc.free(address)

    def decode(self, tokens: Sequence[int]) -> str:
        """Ids to text. Bytes that are no characters, which a model may write, become U+FFFD."""
        given, address, size = native.ids(tokens, -1), c.c_void_p(), c.c_size_t()
        native.check(
            lib.choir_tokenizer_decode(
                self.address, native.pointer(given), len(given), c.byref(address), c.byref(size)
            )
        )
        try:
            return c.string_at(address, size.value).decode(errors="replace")
        finally:
            native.libc.free(address)

    def piece(self, token: int) -> str:
        """The surface text of one token, for people."""
        found = lib.choir_tokenizer_piece(self.address, token)
        if found is None:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return found.decode(errors="replace")
