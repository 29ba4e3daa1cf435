"""Pictures of another kind: the capitals A to J in the fonts of some of Debian's packages, which are fetched and
unpacked, not installed, and drawn by Pillow at random sizes and places. Every fifth font is held out."""

import subprocess

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

PACKAGES = (
    "fonts-adf-accanthis fonts-cabin fonts-cantarell fonts-comfortaa fonts-courier-prime fonts-crosextra-caladea "
    "fonts-crosextra-carlito fonts-dejavu-core fonts-dejavu-extra fonts-ebgaramond fonts-freefont-ttf fonts-inconsolata "
    "fonts-lato fonts-liberation fonts-linuxlibertine fonts-lobster fonts-oldstandard fonts-open-sans fonts-quicksand "
    "fonts-roboto-unhinted fonts-texgyre"
).split()
LETTERS, SIDE = "ABCDEFGHIJ", 28
COUNT = {"train": 40000, "t10k": 2000}


def fetch(folder):
    """Downloads and unpacks the packages into the folder if they are missing, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not (folder / package).is_dir():
            subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True, capture_output=True)
            (found,) = folder.glob(f"{package}_*.deb")
            subprocess.run(["dpkg-deb", "-x", found, folder / package], check=True)
            found.unlink()
    return folder


def faces(folder, part):
    """Font files with capitals, sorted by name."""
    found = {
        path.name: path for end in ("ttf", "otf") for path in folder.rglob(f"*.{end}") if not path.is_symlink()
    }
    paths = [found[name] for name in sorted(found) if drawn(found[name], "A", 20, 0, 0).any()]
    return [path for number, path in enumerate(paths) if (number % 5 == 4) == (part == "t10k")]


def drawn(path, letter, size, right, down):
    """[28,28] bytes, white on black."""
    picture = Image.new("L", (SIDE, SIDE))
    pen, font = ImageDraw.Draw(picture), ImageFont.truetype(str(path), size)
    pen.text((SIDE / 2 + right, SIDE / 2 + down), letter, 255, font, anchor="mm")
    return np.asarray(picture)


def load(folder, part):
    """Pictures [n,28,28] of bytes and labels [n], as images.load gives them."""
    draw, fonts = np.random.default_rng(len(part)), faces(folder, part)
    labels = np.arange(COUNT[part]) % len(LETTERS)
    pictures = [
        drawn(fonts[draw.integers(len(fonts))], LETTERS[y], int(draw.integers(16, 27)), *draw.uniform(-3, 3, 2))
        for y in labels
    ]
    return torch.from_numpy(np.stack(pictures)), torch.from_numpy(labels)
