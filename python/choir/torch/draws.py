"""choir's random numbers in NumPy: Philox4x32-10 of Random123 (Salmon et al. 2011), bit for bit the same as
libchoir's (src/base/rng.h), and the experts that router `random` samples with them."""

from __future__ import annotations

import numpy as np

SECOND_EXPERT = 6  # stream of the experts of `random` (CH_STREAM_SECOND_EXPERT)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def bits(seed: int, stream: int, sub: int, index: np.ndarray) -> np.ndarray:
    """64 random bits for each index, uint64: a function of (seed, stream, sub, index)."""
    index = index.astype(np.uint64)
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)]
    block = [index & _LOW, index >> _HALF, np.full_like(index, stream), np.full_like(index, sub)]
    for _ in range(10):
        first, second = block[0] * np.uint64(0xD2511F53), block[2] * np.uint64(0xCD9E8D57)
        block = [
            (second >> _HALF) ^ block[1] ^ key[0],
            second & _LOW,
            (first >> _HALF) ^ block[3] ^ key[1],
            first & _LOW,
        ]
        key = [key[0] + np.uint64(0x9E3779B9) & _LOW, key[1] + np.uint64(0xBB67AE85) & _LOW]
    return block[1] << _HALF | block[0]


def below(seed: int, layer: int, index: np.ndarray, bound: int) -> np.ndarray:
    """A number in [0, bound) for each index; bound is below 2^32."""
    drawn, bound = bits(seed, SECOND_EXPERT, layer, index), np.uint64(bound)
    return ((drawn >> _HALF) * bound + ((drawn & _LOW) * bound >> _HALF)) >> _HALF


def experts(seed: int, layer: int, token: np.ndarray, choices: int, e: int) -> np.ndarray:
    """[n,e] bool: `choices` experts for each token [n], sampled without replacement (routers/random.c)."""
    drawn = np.zeros((len(token), e), bool)
    index = token.astype(np.uint64) * np.uint64(choices)
    for j in range(choices):
        left = below(seed, layer, index + np.uint64(j), e - j)
        place = np.cumsum(~drawn, 1) - 1  # index among the experts not sampled yet
        drawn |= (place == left[:, None].astype(np.int64)) & ~drawn
    return drawn
