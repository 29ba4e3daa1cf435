"""Expert choice (Zhou et al. 2022), forward and backward, in NumPy alone. x [n,d], Wg [d,e], W1 and W2 [e,d,h].

Run as a program, it prints the tokens of each expert, and compares a gradient with a difference quotient."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def gelu(a):
    return a * (1 + erf(a / math.sqrt(2))) / 2


def gelu_slope(a):
    return (1 + erf(a / math.sqrt(2))) / 2 + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi)


def forward(x, Wg, W1, W2, c):
    """out [n,d], and the intermediate results that backward needs."""
    Z = x @ Wg
    S = np.exp(Z - Z.max(1, keepdims=True))
    S /= S.sum(1, keepdims=True)
    n, e = S.shape
    k = min(n, max(1, math.floor(n * c / e + 0.5)))
    I = np.argsort(-S, axis=0, kind="stable")[:k].T  # [e,k]: the tokens of each expert
    G = np.take_along_axis(S.T, I, 1)[:, :, None]  # [e,k,1]: their gates
    A = x[I] @ W1  # [e,k,h]
    Y = gelu(A) @ W2.transpose(0, 2, 1)  # [e,k,d]
    out = np.zeros_like(x)
    np.add.at(out, I, G * Y)
    return out, (S, I, G, A, Y)


def backward(x, Wg, W1, W2, saved, dout):
    """The gradients by x, Wg, W1, W2 of a loss whose gradient by out is dout."""
    S, I, G, A, Y = saved
    dY = G * dout[I]
    dA = dY @ W2 * gelu_slope(A)
    dW2 = dY.transpose(0, 2, 1) @ gelu(A)
    dW1 = x[I].transpose(0, 2, 1) @ dA
    dS, dx = np.zeros_like(S), np.zeros_like(x)
    np.put_along_axis(dS.T, I, (dout[I] * Y).sum(2), 1)  # 0 for tokens that the expert did not select
    dZ = S * (dS - (S * dS).sum(1, keepdims=True))
    np.add.at(dx, I, dA @ W1.transpose(0, 2, 1))
    return dx + dZ @ Wg.T, x.T @ dZ, dW1, dW2


def main():
    """Eight tokens, four experts, c = 1."""
    random = np.random.default_rng(1)
    x, Wg, W1, W2, dout = (random.standard_normal(shape) for shape in ((8, 3), (3, 4), (4, 3, 5), (4, 3, 5), (8, 3)))
    saved = forward(x, Wg, W1, W2, 1)[1]
    for i, tokens in enumerate(saved[1]):
        print(f"expert {i}: " + ", ".join(f"token {t} (gate {saved[0][t, i]:.3f})" for t in tokens))
    step, gradient = 1e-6, backward(x, Wg, W1, W2, saved, dout)[2][0, 0, 0]
    losses = []
    for sign in (1, -1):
        W1[0, 0, 0] += sign * step
        losses.append((forward(x, Wg, W1, W2, 1)[0] * dout).sum())
        W1[0, 0, 0] -= sign * step
    print(f"gradient of W1[0,0,0]: {gradient:.6f}; by differences: {(losses[0] - losses[1]) / (2 * step):.6f}")


if __name__ == "__main__":
    main()
