"""SentencePiece tokenizers, as choir trains them, and byte-level BPE."""

from __future__ import annotations

import tempfile
import threading
from typing import Any, Callable, Optional, Sequence

import numpy as np

from . import _native as native
from ._handle import Guard, Handle
from ._native import ffi, lib
from .config import Path
from .data import Files, files


class Tokenizer(Handle):
    """A tokenizer: SentencePiece or byte-level BPE.

    Args:
        path: a .model file, a tokenizer.json of byte-level BPE, or a checkpoint, run or data directory with a
            tokenizer.

    Example: choir.Tokenizer("run").encode("Hello")"""

    _free = "choir_tokenizer_free"

    def __init__(self, path: Path):
        address = ffi.new("choir_tokenizer **")
        native.check(lib.choir_tokenizer_load(native.text(path), address))
        super().__init__(address[0])

    @classmethod
    def train(
        cls,
        inputs: Files,
        *,
        out: Path,
        vocab_size: int = 8192,
        type: Optional[str] = None,
        field: Optional[str] = None,
        separator: Optional[str] = None,
        sample_bytes: int = 0,
        threads: int = 0,
        replace_invalid: bool = False,
        progress: Optional[Callable[[str], Any]] = None,
    ) -> Tokenizer:
        """Trains a tokenizer on text, as `choir tokenizer train` does (docs/data.md).

        Args:
            inputs: files of text, or directories of them.
            out: the file to write.
            vocab_size: number of tokens; for "char", an upper bound.
            type: "bpe" (default), "unigram" or "char".
            field, separator, threads, replace_invalid: as for choir.data.build.
            sample_bytes: maximum number of bytes of text to train on, sampled evenly from all inputs; 0: 16 MiB.
            progress: called as progress(line). It may raise an exception to stop. SentencePiece's training cannot
                be interrupted; it then continues in a background thread, without effect.

        Returns the tokenizer."""
        options = native.options(
            "choir_tokenizer_train_options",
            inputs=files(inputs),
            output=out,
            vocab_size=vocab_size,
            type=type,
            field=field,
            separator=separator,
            sample_bytes=sample_bytes,
            threads=threads,
            replace_invalid=replace_invalid,
        )
        with Guard() as guard:
            guard.on(options, "progress", lambda _, p: progress and progress(native.string(p.text)))
            native.check(lib.choir_tokenizer_train(options))
        return cls(out)

    def __copy__(self) -> Tokenizer:
        """A tokenizer is immutable: a copy shares its memory."""
        made = type(self).__new__(type(self))
        made._address, made._in_use = self.address, threading.Lock()
        return made

    def __reduce__(self):
        size = ffi.new("size_t *")
        address = self.address
        return _restored, (ffi.buffer(lib.choir_tokenizer_bytes(address, size), size[0])[:],)

    @property
    def vocab_size(self) -> int:
        return lib.choir_tokenizer_vocab_size(self.address)

    @property
    def eos(self) -> int:
        """The token that ends every document."""
        return lib.choir_tokenizer_eos(self.address)

    def encode(self, text: str) -> np.ndarray:
        """Encodes a text as ids, int32 [count]."""
        raw, address, count = native.utf8(text), ffi.new("int32_t **"), ffi.new("size_t *")
        native.check(lib.choir_tokenizer_encode(self.address, raw, len(raw), address, count))
        try:
            return native.copied(address[0], count[0], np.int32)
        finally:
            lib.free(address[0])

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes ids to a text. Bytes that form no character become U+FFFD."""
        given, address, size = native.ids(tokens, -1), ffi.new("char **"), ffi.new("size_t *")
        native.check(lib.choir_tokenizer_decode(self.address, native.pointer(given), len(given), address, size))
        try:
            return ffi.buffer(address[0], size[0])[:].decode(errors="replace")
        finally:
            lib.free(address[0])

    def piece(self, token: int) -> str:
        """Returns one token as readable text. IndexError: a token outside the vocabulary."""
        found = lib.choir_tokenizer_piece(self.address, token)
        if found == native.NULL:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return native.string(found)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return "Tokenizer(closed)" if self._address is None else f"Tokenizer({self.vocab_size} pieces)"


def _restored(raw: bytes) -> Tokenizer:
    with tempfile.NamedTemporaryFile(suffix=".model") as file:
        file.write(raw)
        file.flush()
        return Tokenizer(file.name)
