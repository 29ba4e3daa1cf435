#!/usr/bin/env python3
"""device_costs.py: what one training step takes on a GPU, on paper, by the kernels as they are (docs/devices.md).

For each kind of work: operations, bytes of the device's memory, and the longer of both times at the peaks that the
makers give. Nothing is measured; caches keep nothing between kernels, and launches and waiting cost nothing."""

# 0.1B/64E (configs/0.1b-64e.json) at 65,536 tokens a step in bf16.
L, d, h, H, e, V, T, n, c = 12, 768, 3072, 12, 64, 32000, 1024, 65536, 2
MOE, slots, chunk = L // 2, c * n, 256
weights = V * d + L * 4 * d * d + MOE * 3 * d * h + MOE * (2 * e * d * h + d * e)
G, T12 = 1e9, 1e12
TENSOR, FP32, FP64 = range(3)
GPUS = {  # dense bf16 with fp32 sums, fp32, fp64, in TFLOP/s; TB/s
    "H100 SXM": (989, 67, 34, 3.35),
    "RTX 4090": (165, 82.6, 1.3, 1.01),
}


def product(m, k, n, batch=1, b16=True):
    """Forward and both gradients: operations, and bytes of operands in bf16 and results in fp32."""
    cells = m * k + k * n * batch + m * n
    return 3 * 2 * m * k * n, 3 * (2 if b16 else 4) * cells + 4 * cells


def rows():
    """name, unit, operations, bytes of a step."""
    flops, moved = product(slots, d, h, e)
    yield "experts: products", TENSOR, MOE * 2 * flops, MOE * 2 * moved
    # forward: write c, read it, write x16 and y16; backward: write c, read it and x16, write y16 and dx16
    yield "experts: GELU", FP32, MOE * slots * h * 90, MOE * slots * h * (12 + 14)
    # gather, round, combine; backward: combine_backward reads dout and y, gather's transpose, rounding
    yield "experts: gather, combine, rounding", FP32, MOE * slots * d * 8, MOE * slots * d * (14 + 8 + 12 + 6 + 8)
    flops, moved = product(n, d, h)
    yield "dense layers: products", TENSOR, MOE * 3 * flops, MOE * 3 * moved
    # forward: g, u written and read, y; rounding; backward: dy, g, u, dg, du, y; rounding of each operand
    yield "dense layers: GEGLU, rounding", FP32, MOE * n * h * 100, MOE * n * h * (26 + 50)
    flops, moved = product(n, d, d)
    yield "attention: projections", TENSOR, L * 4 * flops, L * 4 * moved
    # q k and p v; backward computes q k four times more, dout v four times, and three sums: 13 of 2 d_head a pair
    pairs = n * H * T // 2
    yield "attention: scores and sums", FP32, L * pairs * 13 * 2 * (d // H), L * n * d * 4 * 20
    flops, moved = product(n, d, V)
    yield "head: products", TENSOR, flops, moved + 2 * 4 * V * d * (n // chunk)  # dw is read and written by every chunk
    # softmax: one pass that reads, three that read and write; rounding twice
    yield "head: losses and their gradients", FP32, n * V * 12, n * V * (28 + 12)
    yield "norms", FP64, (2 * L + 1) * n * d * 14, (2 * L + 1) * n * d * (12 + 28)
    yield "sums of squares, Adafactor", FP64, weights * 20, weights * 30


def main():
    work = list(rows())
    print("| work | 10^12 operations | GB | " + " | ".join(f"{g}, ms | share" for g in GPUS) + " |")
    print("|---|" + "--:|" * (2 + 2 * len(GPUS)))
    times = {g: [1e3 * max(f / (p[u] * T12), b / (p[3] * T12)) for _, u, f, b in work] for g, p in GPUS.items()}
    for i, (name, _, flops, moved) in enumerate(work):
        cells = "".join(f" {t[i]:.1f} | {100 * t[i] / sum(t):.0f} % |" for t in times.values())
        print(f"| {name} | {flops / T12:.2f} | {moved / G:.0f} |{cells}")
    total = "".join(f" {sum(t):.0f} | 100 % |" for t in times.values())
    print(f"| all | {sum(w[2] for w in work) / T12:.1f} | {sum(w[3] for w in work) / G:.0f} |{total}")
    print(f"\n{weights / G:.2f} billion weights; {weights * (4 + 4 + 2) / 2**30:.1f} GiB with gradients and bf16 copies")


main()
