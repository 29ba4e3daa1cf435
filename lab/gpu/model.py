"""model.py: what each part of an expert-choice layer and of a training step should take on an H100, by the bytes that it moves and
the multiply-adds that it makes. `python3 lab/gpu/model.py` prints the layer's table; check.py holds what was measured against it."""
import re

PRODUCT = 740e12  # FLOP/s of products in bf16: those of PyTorch's dense layer of equal cost, whose 6.6 ms less its activations are 5.0
FLOAT = 45e12     # of products in fp32, as the router's
MEMORY = 0.85 * 3.35e12  # bytes a second
LAUNCH = 2e-6     # seconds from the end of a small kernel to the next one


def selection(n, e, slots):
    """Seconds of op select: scores are read for each of four digits and for the marks, marks written and read twice."""
    return ((5 * 4 + 3) * n * e + 4 * slots) / MEMORY + 14 * LAUNCH


def layer(n, d, h, e, c, bf16=True):
    """Seconds of both ways by part, as `choir bench moe --parts` names them."""
    slots, narrow = n * c, 2 if bf16 else 4
    hidden, rows, tokens, weights = slots * h, slots * d, n * d, e * d * h
    flops = 6 * 2 * hidden * d
    return {
        "products": flops / (PRODUCT if bf16 else FLOAT) + (2 * (4 - narrow) * rows + 2 * (4 - narrow) * weights) / MEMORY,
        "activations": (2 + 4) * narrow * hidden / MEMORY,
        "dispatch": (2 * (4 + narrow) * rows + (4 + 4 + 4) * rows + (4 + 2) * rows * bf16 + 4 * rows + 4 * tokens) / MEMORY,
        "combine": (4 * rows + 4 * tokens) / MEMORY,
        "router": 3 * 2 * n * d * e / FLOAT + 3 * 4 * tokens / MEMORY,
        "selection": selection(n, e, slots) + 12 * slots / MEMORY + 3 * LAUNCH,
    }


def adafactor(weights):
    """Seconds: gradients are read for sums over columns, for sums over rows and for the update, weights for the last two, and
    weights and their copies in bf16 are written in the same pass."""
    return (4 + 8 + 8 + 4 + 2) * weights / MEMORY


def head(n, d, V):
    """Seconds of both ways in bf16: products; logits are written once, read three times, and their gradients written and read
    twice in bf16; d x V weights are read in bf16, their gradients written."""
    return 3 * 2 * n * d * V / PRODUCT + ((4 + 12 + 2 + 4) * n * V + (2 + 2 + 4) * d * V) / MEMORY


def of_problem(text):
    """The prediction for a problem in the words of `choir bench`, or None."""
    word = dict(part.split("=") for part in text.split()[1:])
    if text.startswith("select "):
        return selection(*(int(word[k]) for k in "ne"), int(word["e"]) * int(word["k"]))
    if not re.match(r"moe .*router=expert_choice", text):
        return None
    return sum(layer(*(int(float(word[k])) for k in "ndhec"), word["compute"] == "bf16").values())


if __name__ == "__main__":
    parts = layer(65536, 768, 3072, 64, 2)
    for name, seconds in parts.items():
        print(f"{name:18} {1e3 * seconds:6.2f} ms")
    whole = sum(parts.values())
    print(f"{'all':18} {1e3 * whole:6.2f} ms, {6 * 2 * 131072 * 768 * 3072 / whole / 790e12:.2f} of 790 TFLOP/s")
    print(f"{'Adafactor, 0.1B/64E':18} {1e3 * adafactor(6 * 64 * 2 * 768 * 3072):6.2f} ms")
    print(f"{'head, 16,384 rows':18} {1e3 * head(16384, 768, 32000):6.2f} ms")
