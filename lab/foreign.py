"""foreign.py texts DIR | runs DIR RUN... | report: what routing `adaptive` gains on text unlike that of training: twelve
kinds, 24 documents each, as they are and with runs of blanks collapsed, beside a cache and a temperature. The texts are
from Debian's packages, which are fetched and unpacked, not installed; a line a run and kind in foreign.jsonl; the table
of docs/foreign.md.

A document is one sequence of 1,024 tokens. Thresholds (of `topk` its own routing) are the rule that the others are
compared with. The cache gives a share of each prediction to the document's own tokens so far, by their frequency (Kuhn
and De Mori 1990); share and temperature are each kind's best in hindsight, so they are the most that such a thing can
do."""

import argparse
import gzip
import json
import pathlib
import re
import subprocess
import sys

import numpy as np

LAB = pathlib.Path(__file__).resolve().parent
RESULTS, PAGE = LAB / "foreign.jsonl", LAB.parent / "docs/foreign.md"
DOCUMENTS, CHARACTERS, TOKENS = 24, 12000, 1024
KINDS = {  # package, files
    "Python": ("libpython3.11-stdlib", "usr/lib/python3.11/**/*.py"),
    "C": ("linux-libc-dev", "usr/include/**/*.h"),
    "Perl": ("perl-modules-5.36", "usr/share/perl/**/*.pm"),
    "TypeScript": ("node-typescript", "usr/share/nodejs/typescript/**/*.d.ts"),
    "HTML": ("debian-faq", "usr/share/doc/**/*.en.html"),
    "JSON": ("iso-codes", "usr/share/iso-codes/json/*.json"),
    "tables": ("unicode-data", "usr/share/unicode/**/*.txt"),
    "shell": ("bash-completion", "usr/share/bash-completion/completions/*"),
    "English": ("manpages", "usr/share/man/man*/*.gz"),
    "German": ("manpages-de", "usr/share/man/de/man*/*.gz"),
    "French": ("manpages-fr", "usr/share/man/fr/man*/*.gz"),
    "Polish": ("manpages-pl", "usr/share/man/pl/man*/*.gz"),
}
SHARES, TEMPERATURES = (0.05, 0.1, 0.2, 0.4), (0.9, 1.1, 1.25, 1.5, 2.0)


def read(path):
    """A file's text; of a manual page without troff's commands."""
    held = path.read_bytes()
    text = (gzip.decompress(held) if path.suffix == ".gz" else held).decode("utf-8", "replace")
    if "/man/" in str(path):
        text = "\n".join(line for line in text.splitlines() if not re.match(r"[.']", line))
        text = re.sub(r"\\f[A-Z]|\\&|\\s[-+]?\d|\\f\(..|\\f\[.*?\]", "", text)
        text = re.sub(r"\\\(aq|\\\(cq", "'", text).replace("\\-", "-").replace("\\ ", " ")
    return text


def texts(out):
    """DIR/KIND.json, the documents: pieces of all files of a kind, one behind the other, evenly spaced."""
    fetched = out / "packages"
    fetched.mkdir(parents=True, exist_ok=True)
    subprocess.check_call(["apt-get", "-q", "download", *{package for package, _ in KINDS.values()}], cwd=fetched)
    for package in {package for package, _ in KINDS.values()}:
        (deb,) = fetched.glob(f"{package}_*.deb")
        subprocess.check_call(["dpkg-deb", "-x", deb, fetched / package])
    for kind, (package, files) in KINDS.items():
        found = sorted(path for path in (fetched / package).glob(files) if path.is_file() and not path.is_symlink())
        whole = "\n".join(map(read, found))
        step = (len(whole) - CHARACTERS) // (DOCUMENTS - 1)
        if step < CHARACTERS:
            raise SystemExit(f"foreign.py: {package} has {len(whole)} characters of {kind}, too few")
        made = [whole[i * step : i * step + CHARACTERS] for i in range(DOCUMENTS)]
        (out / f"{kind}.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")


def losses(logits, tokens, heat=1.0):
    """[D,T-1] nats of each next token, at a temperature."""
    logits = logits[:, :-1] / np.float32(heat)
    logits -= logits.max(-1, keepdims=True)
    said = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return np.log(np.exp(logits, out=logits).sum(-1)) - said


def frequency(document):
    """[T-1]: the share that the next token has in its document so far."""
    seen, found = np.zeros(document.max() + 1), []
    for t, (token, target) in enumerate(zip(document, document[1:]), 1):
        seen[token] += 1
        found.append(seen[target] / t)
    return np.array(found)


def measure(model, documents):
    """The loss of each document: as it is served, by adaptive routing, with the best cache, at the best temperature."""
    ids = [model.tokenizer.encode(text)[:TOKENS] for text in documents]
    if min(map(len, ids)) < TOKENS:
        raise SystemExit(f"foreign.py: a document has {min(map(len, ids))} tokens, {TOKENS} are needed")
    found = {}

    def add(what, loss):
        found.setdefault(what, []).extend(loss.mean(1, dtype=float))

    for first in range(0, len(ids), 4):
        tokens = np.array(ids[first : first + 4], np.int32)
        model.routing = "threshold" if model.config["router.name"] == "expert_choice" else "batch"
        logits = model.forward(tokens).logits
        loss = losses(logits, tokens)
        add("own", loss)
        often = np.stack([frequency(document) for document in tokens])
        for share in SHARES:
            add(f"cache {share}", -np.log((1 - share) * np.exp(-loss) + share * often))
        for heat in TEMPERATURES:
            add(f"temperature {heat}", losses(logits, tokens, heat))
        model.routing = "adaptive"
        add("adaptive", losses(model.forward(tokens).logits, tokens))
    best = {"own": found["own"], "adaptive": found["adaptive"]}
    for what in ("cache", "temperature"):
        best[what] = min((v for k, v in found.items() if k.startswith(what)), key=np.mean)
    return {what: [round(loss, 5) for loss in values] for what, values in best.items()}


def runs(folder, paths):
    import choir

    for path in paths:
        model = choir.Model.load(str(path))
        name = {"expert_choice": "EC"}.get(model.config["router.name"], model.config["router.name"])
        for kind in KINDS:
            documents = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
            collapsed = [re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*", "\n", text)) for text in documents]
            for how, some in (("as it is", documents), ("collapsed", collapsed)):
                line = {"router": name, "seed": model.config["train.seed"], "kind": kind, "text": how, **measure(model, some)}
                with open(RESULTS, "a") as out:
                    out.write(json.dumps(line) + "\n")
        print(path, flush=True)


def gain(lines, what):
    """Mean and 95 % interval over seeds and documents, both drawn at random (crossed; Satterthwaite's degrees)."""
    from scipy import stats

    table = np.array([np.subtract(line["own"], line[what]) for line in lines])  # [seeds,documents]
    S, D = table.shape
    mean, seed, document = table.mean(), table.mean(1), table.mean(0)
    rest = table - seed[:, None] - document + mean
    squares = [D * seed.var(ddof=1), S * document.var(ddof=1), (rest**2).sum() / ((S - 1) * (D - 1))]
    variance = max(squares[0] + squares[1] - squares[2], *squares[:2])  # never less than seeds or documents alone give
    freedom = variance**2 / (squares[0] ** 2 / (S - 1) + squares[1] ** 2 / (D - 1) + squares[2] ** 2 / ((S - 1) * (D - 1)))
    half = stats.t.ppf(0.975, max(freedom, 1)) * np.sqrt(variance / (S * D))
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"


def table():
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    routers = list(dict.fromkeys(line["router"] for line in lines))
    yield "| kind | loss | " + " | ".join(f"{router}: adaptive | collapsed" for router in routers) + " | cache | temperature |"
    yield "|---|--:|" + "--:|" * (2 * len(routers) + 2)
    for kind in KINDS:
        def some(router, how):
            return [line for line in lines if (line["router"], line["kind"], line["text"]) == (router, kind, how)]

        first = some(routers[0], "as it is")
        cells = [gain(some(router, how), "adaptive") for router in routers for how in ("as it is", "collapsed")]
        own = np.mean([line["own"] for line in first])
        yield "| " + " | ".join([kind, f"{own:.2f}", *cells, gain(first, "cache"), gain(first, "temperature")]) + " |"


def page(given):
    sys.path.insert(0, str(LAB.parent / "python"))
    from choir.study.page import put

    return put(given, "\n".join(table()) + "\n", of="lab/foreign")


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", choices=["texts", "runs", "report"])
    ask.add_argument("given", nargs="*", type=pathlib.Path)
    o = ask.parse_args()
    if o.what == "texts":
        texts(*o.given)
    elif o.what == "runs":
        runs(o.given[0], o.given[1:])
    else:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(LAB.parent / "python"))
    main()
