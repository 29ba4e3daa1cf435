"""Expert choice (Zhou et al. 2022), forward and backward, in NumPy alone. x [n,d], Wg [d,e], W1 and W2 [e,d,h]."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def gelu(a):
    return a * (1 + erf(a / math.sqrt(2))) / 2


def gelu_slope(a):
    return (1 + erf(a / math.sqrt(2))) / 2 + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi)


def forward(x, Wg, W1, W2, c):
    """out [n,d], and what backward needs."""
    Z = x @ Wg
    S = np.exp(Z - Z.max(1, keepdims=True))
    S /= S.sum(1, keepdims=True)
    n, e = S.shape
    k = min(n, max(1, math.floor(n * c / e + 0.5)))
    I = np.argsort(-S, axis=0, kind="stable")[:k].T  # [e,k]: the tokens that each expert takes
    G = np.take_along_axis(S.T, I, 1)[:, :, None]  # [e,k,1]: their gates
    A = x[I] @ W1  # [e,k,h]
    Y = gelu(A) @ W2.transpose(0, 2, 1)  # [e,k,d]
    out = np.zeros_like(x)
    np.add.at(out, I, G * Y)
    return out, (S, I, G, A, Y)


def backward(x, Wg, W1, W2, kept, dout):
    """The gradients by x, Wg, W1, W2 of a loss whose gradient by out is dout."""
    S, I, G, A, Y = kept
    dY = G * dout[I]
    dA = dY @ W2 * gelu_slope(A)
    dW2 = dY.transpose(0, 2, 1) @ gelu(A)
    dW1 = x[I].transpose(0, 2, 1) @ dA
    dS, dx = np.zeros_like(S), np.zeros_like(x)
    np.put_along_axis(dS.T, I, (dout[I] * Y).sum(2), 1)  # 0 where the expert did not take the token
    dZ = S * (dS - (S * dS).sum(1, keepdims=True))
    np.add.at(dx, I, dA @ W1.transpose(0, 2, 1))
    return dx + dZ @ Wg.T, x.T @ dZ, dW1, dW2
