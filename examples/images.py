"""images.py [--minutes 5] [--out images]: trains a small diffusion transformer with expert choice on photographs of
clothes (Debian's package dataset-fashion-mnist, which is downloaded and unpacked, not installed). It writes
OUT/samples.png (generated pictures, one class per column), OUT/experts.png (the patches that experts process, at four
levels of noise), and OUT/index.html (both, with the numbers of each patch's experts). Needs PyTorch 1.13 or later.

The model is DiT (Peebles and Xie 2022, arXiv:2212.09748) in pixels, trained by flow matching. In every second block, an
ExpertChoice layer replaces the feed-forward layer. Experts choose among all patches of the batch, so a patch competes
with patches of other pictures and other levels of noise. Samples use threshold routing: an expert processes a patch if
its score reaches the mean cut-off of training, so that a picture does not depend on the other pictures of its batch."""

import argparse
import base64
import copy
import gzip
import hashlib
import math
import os
import pathlib
import struct
import subprocess
import tempfile
import time
import zlib

import torch
import torch.nn.functional as F
from torch import nn

import choir.torch

SIDE, PATCH, CLASSES = 28, 4, 10
NOISE = (0.1, 0.4, 0.7, 0.95)  # levels at which experts are shown
PAGES = ("samples.png", "experts.png", "index.html")
PACKAGE = "dataset-fashion-mnist"
FILES = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, T, d))


class Block(nn.Module):
    """DiT's block with adaLN-zero: time and class shift, scale and gate what the block does, and gates begin at 0."""

    def __init__(self, d, heads, feed_forward):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(d, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = Attention(d, heads), feed_forward
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))
        nn.init.zeros_(self.adaLN_modulation[1].weight), nn.init.zeros_(self.adaLN_modulation[1].bias)

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c)[:, None].chunk(6, -1)
        x = x + gate1 * self.attn(modulate(self.norm1(x), shift1, scale1))
        return x + gate2 * self.mlp(modulate(self.norm2(x), shift2, scale2))


def waves(position, d):
    """[n,d] sines and cosines of position [n], of periods from 2 pi to 2 pi 10000."""
    angles = position[:, None] * torch.exp(-math.log(10000) * torch.arange(d // 2) / (d // 2))
    return torch.cat([angles.cos(), angles.sin()], 1)


class DiT(nn.Module):
    """x [B,28,28] at times t [B] and classes y [B] to the velocity [B,28,28]; class 10 is none. experts(layer) makes the
    feed-forward layer of a block."""

    def __init__(self, experts, d=64, layers=4, heads=4, patch=PATCH):
        super().__init__()
        self.patch, self.d, across = patch, d, SIDE // patch
        self.x_embedder = nn.Linear(patch * patch, d)
        rows, columns = (torch.arange(across**2) // across).float(), (torch.arange(across**2) % across).float()
        self.register_buffer("pos_embed", torch.cat([waves(rows, d // 2), waves(columns, d // 2)], 1))
        self.t_embedder = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.y_embedder = nn.Embedding(CLASSES + 1, d)
        self.blocks = nn.ModuleList(Block(d, heads, experts(layer)) for layer in range(layers))
        self.norm = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(d, 2 * d))
        self.linear = nn.Linear(d, patch * patch)
        nn.init.normal_(self.y_embedder.weight, std=0.02)
        for zero in (self.adaLN_modulation[1], self.linear):
            nn.init.zeros_(zero.weight), nn.init.zeros_(zero.bias)

    def forward(self, x, t, y):
        p, across = self.patch, SIDE // self.patch
        patches = x.view(-1, across, p, across, p).transpose(2, 3).reshape(len(x), across**2, p * p)
        h = self.x_embedder(patches) + self.pos_embed
        c = self.t_embedder(waves(1000 * t, self.d)) + self.y_embedder(y)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.adaLN_modulation(c)[:, None].chunk(2, -1)
        out = self.linear(modulate(self.norm(h), shift, scale))
        return out.view(-1, across, across, p, p).transpose(2, 3).reshape(x.shape)


def mixture(layer, d=64, num_experts=16):
    """Each patch has one expert on average: the FLOPs of the dense layer. causal: by thresholds in eval()."""
    if layer % 2 == 0:
        return nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    return choir.torch.ExpertChoice(d, 4 * d, num_experts, capacity_factor=1, causal=True)


def flow_loss(model, x, y, t, noise):
    """Flow matching: from the picture (t = 0) a straight line leads to noise (t = 1); the model predicts its direction.
    Returns the loss of each picture."""
    noisy = torch.lerp(x, noise, t[:, None, None])
    return (model(noisy, t, y) - (noise - x)).square().mean((1, 2))


@torch.no_grad()
def follow(ema, model, step):
    """Moves the mean of weights, with which samples are drawn; what routers keep is copied."""
    decay = min(0.995, (1 + step) / (10 + step))
    for mean, now in zip(ema.parameters(), model.parameters()):
        mean.lerp_(now, 1 - decay)
    for kept, now in zip(ema.buffers(), model.buffers()):
        kept.copy_(now)


def draw(pictures, labels, batch, source=None):
    """A batch: pictures from -1 to 1, classes, times and noise, from a generator or PyTorch's own."""
    some = torch.randint(len(pictures), (batch,), generator=source)
    x, y = pictures[some].float() / 127.5 - 1, labels[some].clone()
    y[torch.rand(batch, generator=source) < 0.1] = CLASSES  # learns to draw without a class, too
    # every part of (0,1) has its share of the batch
    t = (torch.randperm(batch, generator=source) + torch.rand(batch, generator=source)) / batch
    return x, y, t, torch.randn(x.shape, generator=source)


def train(model, pictures, labels, minutes, rate=4e-3, batch=64):
    """For so many minutes; returns the mean of weights."""
    ema, begin, step = copy.deepcopy(model), time.monotonic(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0)
    while time.monotonic() < begin + 60 * minutes:
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50)
        loss = flow_loss(model, *draw(pictures, labels, batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        choir.torch.update_routers(model)
        optimizer.step()
        step += 1
        follow(ema, model, step)
        if step % 100 == 0:
            print(f"step {step}, {(time.monotonic() - begin) / 60:.1f} minutes, loss {loss:.4f}", flush=True)
    return calibrate(ema, (draw(pictures, labels, batch) for _ in range(50)))


def mixtures(model):
    return [layer for layer in model.modules() if isinstance(layer, choir.torch.MoE)]


@torch.no_grad()
def calibrate(model, batches):
    """Takes the thresholds anew, for these weights: the mean cut-offs of some batches."""
    for layer in mixtures(model):
        layer.go_on_from(0)
    for batch in batches:
        flow_loss(model.train(), *batch)
        choir.torch.update_routers(model)
    return model.eval()


@torch.no_grad()
def sample(model, y, guidance=2.0, steps=25):
    """Pictures of classes y [B], from noise along the predicted directions, which guidance leads away from those of no
    class."""
    x, none = torch.randn(len(y), SIDE, SIDE), torch.full_like(y, CLASSES)
    for step in range(steps, 0, -1):
        t = torch.full((len(y),), step / steps)
        led = model(x, t, y)
        if guidance != 1:
            led = torch.lerp(model(x, t, none), led, guidance)
        x = x - led / steps
    return x


@torch.no_grad()
def experts_of(model, x, y, t, draws=8):
    """Experts of each patch [B,7,7] in the last mixture when pictures have so much noise, the mean over some noises."""
    counts = torch.zeros(len(x), SIDE // PATCH, SIDE // PATCH)
    for _ in range(draws):
        model(torch.lerp(x, torch.randn_like(x), t), torch.full((len(x),), t), y)
        counts += mixtures(model)[-1].routing.assignment.sum(1).view(counts.shape) / draws
    return counts


def colours(x):
    """Pictures [B,28,28] from -1 to 1 as [B,28,28,3] from 0 to 1."""
    return ((x + 1) / 2).clamp(0, 1)[..., None].expand(-1, -1, -1, 3)


def shaded(x, counts, most=3.0):
    """Pictures in colours, the more orange a patch the more experts it has."""
    share = (counts / most).clamp(0, 1).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)[..., None]
    return torch.lerp(0.8 * colours(x), torch.tensor([1.0, 0.45, 0.0]), 0.9 * share)


def sheet(pictures, rows, zoom=3, gap=2):
    """[rows*columns,28,28,3] of 0 to 1 as one picture, row by row."""
    n, columns = len(pictures), len(pictures) // rows
    large = pictures.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)
    framed = F.pad(large, (0, 0, gap, gap, gap, gap), value=1.0)
    side = framed.shape[1]
    return framed.view(rows, columns, side, side, 3).transpose(1, 2).reshape(rows * side, columns * side, 3)


def one_a_class(photographs, labels):
    some = torch.stack([(labels == y).nonzero()[3, 0] for y in range(CLASSES)])
    return photographs[some].float() / 127.5 - 1, labels[some]


def where_experts_look(model, photographs, labels):
    """A photograph of each class, and below it the experts of its patches at four levels of noise."""
    x, y = one_a_class(photographs, labels)
    rows = [shaded(x, experts_of(model, x, y, t)) for t in NOISE]
    return sheet(torch.cat([colours(x), *rows]), 1 + len(NOISE))


@torch.no_grad()
def page_of_experts(model, photographs, labels, drawn):
    """The same as HTML, with one noise: under the pointer a patch names its experts in each mixture. Below it the samples
    drawn, a sheet of pictures."""
    x, y = one_a_class(photographs, labels)
    rows = []
    for t in NOISE:
        noisy = torch.lerp(x, torch.randn_like(x), t)
        model(noisy, torch.full((len(x),), t), y)
        taken = torch.stack([layer.routing.assignment.unflatten(0, (len(x), -1)) for layer in mixtures(model)], 2)
        cells = []
        for picture, patches in zip(sheet(colours(noisy), 1, 4, 0).split(4 * SIDE, 1), taken):
            names = [
                "; ".join(f"MoE layer {i}: {', '.join(map(str, mine.nonzero()[:, 0].tolist())) or 'none'}"
                          for i, mine in enumerate(patch, 1)) for patch in patches
            ]  # fmt: skip
            shades = "".join(
                f'<i title="{name}" style="opacity:{min(1, patch[-1].sum().item() / 3):.2f}"></i>'
                for name, patch in zip(names, patches)
            )
            cells.append(f'<td style="background-image:url({data_url(picture)})"><div>{shades}</div>')
        rows.append(f"<tr><th>{t:g}{''.join(cells)}")
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>Where the experts look</title><style>"
        "body{font-family:sans-serif;margin:16px}table,img{width:100%;max-width:1150px}table{table-layout:fixed}th{width:3em}"
        "td{padding:0;background-size:100% 100%}div{display:grid;grid-template-columns:repeat(7,1fr)}"
        "i{aspect-ratio:1;background:#ff7300cc}i:hover{outline:1px solid}img{image-rendering:pixelated}</style>"
        "<h1>Where the experts look</h1><p>Photographs with noise; the number is the noise level of the row. A patch is more"
        " orange if more experts of the last MoE layer process it. Point at a patch to see its experts in each MoE layer."
        f"<table>{''.join(rows)}</table><h1>Samples</h1><p>Pictures that the model generated, one class per column."
        f'<p><img alt="samples" src="{data_url(drawn)}"></html>\n'
    )


def png(picture):
    """picture [height,width,3] of 0 to 1, as a file of PNG."""
    height, width, _ = picture.shape
    rows = (picture.clamp(0, 1) * 255).round().to(torch.uint8).reshape(height, -1)
    raw = b"".join(b"\0" + bytes(row.tolist()) for row in rows)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def data_url(picture):
    return f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"


def fetch(folder):
    """The four files of the package in a folder, from there, from where the package is installed, or from Debian."""
    for place in (folder, pathlib.Path("/usr/share/datasets/fashion-mnist")):
        if all((place / name).is_file() for name in FILES):
            return place
    if os.path.lexists(folder):
        raise SystemExit(f"images.py: {folder} is there, without {', '.join(FILES)}: put them into it, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching Debian's package {PACKAGE} (31 MB)", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder.parent) as made:
        fetched = subprocess.run(["apt-get", "-q", "download", PACKAGE], cwd=made, capture_output=True, text=True)
        packages = list(pathlib.Path(made).glob(f"{PACKAGE}_*.deb"))
        if fetched.returncode or not packages:
            raise SystemExit(
                f"images.py: apt-get could not fetch {PACKAGE}: {fetched.stderr.strip()}\nRun 'apt-get update' as root, or "
                f"put {', '.join(FILES)} of Fashion-MNIST into {folder}"
            )
        subprocess.run(["dpkg-deb", "-x", packages[0], f"{made}/package"], check=True)
        os.rename(f"{made}/package/usr/share/datasets/fashion-mnist", folder)
    return folder


def minutes(text):
    """A training time, for argparse."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of minutes above 0")
    return value


def check_new(out):
    """Makes the folder, and refuses what could not be written after the training, or would be lost by it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise SystemExit(f"images.py: --out {out}: cannot be written: {error.strerror}") from None
    if out.is_symlink():
        raise SystemExit(f"images.py: --out {out}: is a symbolic link; give the folder itself")
    for name in PAGES:
        if os.path.lexists(out / name):
            raise SystemExit(f"images.py: {out / name}: exists already; move it, or choose another --out")


def write(path, data):
    """A new file; one that is there, and a link, stay as they are."""
    with open(path, "xb") as file:
        file.write(data)


def load(folder, part):
    """Pictures [n,28,28] of bytes and labels [n] of a part, "train" or "t10k"."""
    made = []
    for name, head, shape in (
        (f"{part}-images-idx3-ubyte.gz", 16, (-1, SIDE, SIDE)),
        (f"{part}-labels-idx1-ubyte.gz", 8, (-1,)),
    ):
        packed = (folder / name).read_bytes()
        if hashlib.sha256(packed).hexdigest() != FILES[name]:
            raise SystemExit(
                f"images.py: {folder / name} is not the file of {PACKAGE}: its SHA-256 is another; remove it"
            )
        made.append(torch.frombuffer(bytearray(gzip.decompress(packed)[head:]), dtype=torch.uint8).view(shape))
    return made[0], made[1].long()


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--minutes", type=minutes, default=5, help="training time (5)")
    ask.add_argument(
        "--out", type=pathlib.Path, default="images", help="folder for pictures, and data if not installed (images)"
    )
    o = ask.parse_args()
    torch.manual_seed(1)
    check_new(o.out)
    folder = fetch(o.out / "data")
    model = DiT(mixture)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million weights, 16 experts in two of four layers"
    )
    ema = train(model, *load(folder, "train"), o.minutes)

    held_out = load(folder, "t10k")
    drawn = sheet(colours(sample(ema, torch.arange(CLASSES).repeat(4))), 4)
    made = (png(drawn), png(where_experts_look(ema, *held_out)), page_of_experts(ema, *held_out, drawn).encode())
    for name, data in zip(PAGES, made):
        write(o.out / name, data)
    print(
        f"{o.out}/samples.png: generated pictures, one class per column\n"
        f"{o.out}/experts.png: photographs, and below each its patches at noise levels {', '.join(map(str, NOISE))}; more\n"
        "  orange: more experts\n"
        f"{o.out}/index.html: both, with the numbers of each patch's experts"
    )


if __name__ == "__main__":
    main()
