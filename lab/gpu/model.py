"""model.py: what each part of an expert-choice layer and of a training step should take on an H100, by the bytes that it moves and
the multiply-adds that it makes. `python3 lab/gpu/model.py` prints the table; check.py holds what was measured against it."""
import re

PRODUCT = 740e12  # FLOP/s of products in bf16: those of PyTorch's dense layer of equal cost, whose 6.6 ms less its activations are 5.0
FLOAT = 45e12     # of products in fp32, as the router's
MEMORY = 0.85 * 3.35e12  # bytes a second
CACHE, CACHE_BYTES = 5.5e12, 50 << 20  # of the L2 cache: bytes a second, assumed, not measured; and its size
LAUNCH = 2e-6     # seconds from the end of a small kernel to the next one, launched by the host
NODE = 1.2e-6     # and to the next one of a graph, as steps and benches run from their second time on
CALL = 0.2e-6     # host's seconds from one call to the next, launches aside: a step of nano on the stand-in, kernels left out, is 0.114 ms


def selection(n, e, slots):
    """Seconds of op select: scores are read for each of four digits and for the marks, marks written and read twice; 14 kernels and
    two small arrays of the host's."""
    return ((5 * 4 + 3) * n * e + 4 * slots) / MEMORY + 16 * NODE


def graph(launches):
    """Seconds that a step is shorter as a graph, at least: where the host was not behind."""
    return launches * (LAUNCH - NODE)


def overlap(calls):
    """Seconds that a step is shorter if calls are launched while the host prepares the next ones, not after the last one."""
    return calls * CALL


def layer(n, d, h, e, c, bf16=True):
    """Seconds of both ways by part."""
    slots, narrow = n * c, 2 if bf16 else 4
    hidden, rows, tokens, weights = slots * h, slots * d, n * d, e * d * h
    flops = 6 * 2 * hidden * d
    return {
        "products": flops / (PRODUCT if bf16 else FLOAT) + (2 * (4 - narrow) * rows + 2 * (4 - narrow) * weights) / MEMORY,
        "activations": (2 + 4) * narrow * hidden / MEMORY,
        "dispatch": (2 * (4 + narrow) * rows + (4 + 4 + 4) * rows + (4 + 2) * rows * bf16 + 4 * rows + 4 * tokens) / MEMORY,
        "combine": (4 * rows + 4 * tokens) / MEMORY,
        "router": 3 * 2 * n * d * e / FLOAT + 3 * 4 * tokens / MEMORY,
        "selection": selection(n, e, slots) + 12 * slots / MEMORY + 3 * NODE,
    }


def adafactor(weights, rounded=True):
    """Seconds: gradients are read for sums over columns, for sums over rows and for the update, weights for the last two, and
    weights and, if they are rounded, their copies in bf16 are written in the same pass."""
    return (4 + 8 + 8 + 4 + 2 * rounded) * weights / MEMORY


def head(n, d, V, bf16=True):
    """Seconds of both ways: products; logits are written once and read three times, and their gradients written and read twice;
    d x V weights are read twice, their gradients written. In bf16 products read rounded numbers."""
    narrow = 2 if bf16 else 4
    return 3 * 2 * n * d * V / (PRODUCT if bf16 else FLOAT) + ((4 + 12 + 3 * narrow) * n * V + (2 * narrow + 4) * d * V) / MEMORY


def attention(B, T, H, dh, bf16=True, bidirectional=False):
    """Seconds of both ways, as src/device/attention.c cuts them: scores and what is made of them stay in the L2 cache; queries, keys,
    values and their gradients are rewritten by heads and back; a gap for each call."""
    narrow, pairs, rows, pitch = 2 if bf16 else 4, B * H, min(T, 256), (T + 7) // 8 * 8
    begins = range(0, T, rows)
    scores = pairs * sum(min(rows, T - i) * (T if bidirectional else min(i + rows, T)) for i in begins)
    elements, blocks, seconds = pairs * T * dh, len(begins), 0
    ways = ((1, 4 + 4 + 2 * narrow, 3 * (4 + narrow) + 3 * narrow + 4 + 8, 4, 3),  # arrays, bytes a score, an element; calls once, a block
            (2, 8 + 8 + 6 * narrow, 4 * (4 + narrow) + 7 * narrow + 4 + 2 * (8 * blocks - 4) + 3 * 8, 8, 7))
    for arrays, of_score, of_element, once, often in ways:
        at_once = max(1, max(CACHE_BYTES * 3 // 4 // (arrays * (4 + narrow * bf16)), 1 << 21) // (rows * pitch))
        gaps = once + often * blocks * -(-pairs // at_once)
        seconds += of_score * scores / CACHE + of_element * elements / MEMORY + gaps * NODE
    return seconds + 7 * 2 * scores * dh / (PRODUCT if bf16 else FLOAT)


PARTS_OF_BENCH = {"expert products, GELU": ("products", "activations"), "router products": ("router",), "dispatch": ("dispatch",),
                  "combine": ("combine",), "routing": ("selection",)}  # as `choir bench moe --parts` names them


def layer_of(word):
    return layer(*(int(float(word[k])) for k in "ndhec"), word["compute"] == "bf16")


def part_of_problem(text, name):
    """The prediction for a part of a layer."""
    parts = layer_of(dict(part.split("=") for part in text.split()[1:]))
    return sum(parts[k] for k in PARTS_OF_BENCH[name])


def of_problem(text):
    """The prediction for a problem in the words of `choir bench`, or None."""
    word = dict(part.split("=") for part in text.split()[1:])
    if text.startswith("head "):
        return head(*(int(word[k]) for k in "ndV"), word["compute"] == "bf16")
    if text.startswith("attention "):
        return attention(*(int(word[k]) for k in ("B", "T", "H", "dh")), word["compute"] == "bf16", word["bidirectional"] == "1")
    if text.startswith("adafactor "):
        return adafactor(int(word["batch"]) * int(word["rows"]) * int(word["cols"]), rounded=False)
    if text.startswith("select "):
        return selection(*(int(word[k]) for k in "ne"), int(word["e"]) * int(word["k"]))
    if not re.match(r"moe .*router=expert_choice", text):
        return None
    return sum(layer_of(word).values())


if __name__ == "__main__":
    parts = layer(65536, 768, 3072, 64, 2)
    for name, seconds in parts.items():
        print(f"{name:18} {1e3 * seconds:6.2f} ms")
    whole = sum(parts.values())
    print(f"{'all':18} {1e3 * whole:6.2f} ms, {6 * 2 * 131072 * 768 * 3072 / whole / 790e12:.2f} of 790 TFLOP/s")
    print(f"{'selection alone':18} {1e3 * selection(65536, 64, 131072):6.3f} ms, {4e-9 * 65536 * 64 / selection(65536, 64, 131072):.0f} GB/s of scores")
    print(f"{'graph of nano':18} {-1e3 * graph(428):6.2f} ms, of 0.1B/64E {-1e3 * graph(5091):.1f} ms")
    print(f"{'overlap of nano':18} {-1e3 * overlap(550):6.2f} ms, of 0.1B/64E {-1e3 * overlap(5091):.1f} ms")
    print(f"{'Adafactor, 0.1B/64E':18} {1e3 * adafactor(6 * 64 * 2 * 768 * 3072):6.2f} ms")
    print(f"{'head, 16,384 rows':18} {1e3 * head(16384, 768, 32000):6.2f} ms")
    for B, T in ((8, 512), (4, 1024), (16, 1024)):
        print(f"{f'attention {B} x {T}':18} {1e3 * attention(B, T, 12, 64):6.2f} ms, fp32 {1e3 * attention(B, T, 12, 64, False):.2f} ms")
