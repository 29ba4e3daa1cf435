"""choir's random numbers in PyTorch operations: outside training `random` draws by layer and token id."""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
SECOND_EXPERT = 6  # CH_STREAM_SECOND_EXPERT (src/base/rng.h)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The high and low words of a 32-bit product, within 63 bits."""
    return (a * (b >> 16) + (a * (b & 0xFFFF) >> 16)) >> 16, (a * b) & WORD


def philox(index: Tensor, stream: int, sub: int, key: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor]:
    """Two 32-bit words, low then high, of Philox4x32-10 (Salmon et al. 2011) at counter (index, stream, sub)."""
    c = [index & WORD, index >> 32, torch.full_like(index, stream), torch.full_like(index, sub)]
    for turn in range(10):
        high0, low0 = _product(0xD2511F53, c[0])
        high1, low1 = _product(0xCD9E8D57, c[2])
        k = (key[0] + turn * 0x9E3779B9) & WORD, (key[1] + turn * 0xBB67AE85) & WORD
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
    return c[0], c[1]


def experts_by_id(tokens: Tensor, count: int, e: int, layer: int) -> Tensor:
    """[n,count] different experts, ascending; tokens [n] ids."""
    drawn: list[Tensor] = []
    for j in range(count):
        low, high = philox(tokens.long() * count + j, SECOND_EXPERT, layer)
        one = (high * (e - j) + (low * (e - j) >> 32)) >> 32
        for earlier in drawn:
            one = one + (one >= earlier)
        drawn = list(torch.stack([*drawn, one]).sort(0).values)
    return torch.stack(drawn, 1)
