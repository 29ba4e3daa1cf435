#!/usr/bin/env python3
"""site.py [CHOIR] [OUT]: the docs as a static site with search, by mkdocs (Debian: mkdocs; PyPI: mkdocs 1.4 or later).

CHOIR is the program that `choir help` is asked of (build/choir), OUT the folder to make (build/site). The pages are those
of docs/ and the root, as they stand; pages made here are the commands (from `choir help`), the C interface (from the
comments of include/choir/) and the Python package (from its docstrings). Warnings of mkdocs and links that lead nowhere
are errors. Nothing is fetched, neither here nor by the pages. To read: python3 -m http.server -d build/site."""

import ast
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAV = {
    "Learn": ["moe", "getting-started", "your-text", "glossary"],
    "How to": ["data", "training", "finetuning", "generation", "serving", "inspecting", "locality", "clusters", "planning", "devices",
               "studies", "adding-a-router", "conformance"],
    "Reference": ["commands", "python", "python-reference", "embedding", "c-reference", "routers", "formats", "vectors",
                  "ops", "pages"],
    "Explanation": ["layer", "diffusion", "causality", "assignment", "design"],
    "Evidence": ["performance", "testing"],
    "Project": ["contributing", "security", "changelog"],
}  # fmt: skip
ROOT_PAGES = {"README.md": "index", "CONTRIBUTING.md": "contributing", "SECURITY.md": "security",
              "CHANGELOG.md": "changelog", "docs/README.md": "pages"}  # fmt: skip
# What people type into the search.
SEARCHED = ["overfit", "early stopping", "best checkpoint", "compare"]
# What is wider than a phone scrolls by itself: the page does not.
STYLE = """table, pre { display: block; max-width: 100%; overflow-x: auto }
:not(pre) > code { white-space: normal; overflow-wrap: anywhere }
h1, h2, h3, h4, p, li { overflow-wrap: anywhere }
table p, td, th, td code { overflow-wrap: normal }
"""
GLOSSARY = "\n\n---\n\n*A word that is not explained here may be in the [glossary](glossary.md).*\n"


def slug(text, _separator="-"):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def placed(path):
    """The page that a file of the tree becomes, or None."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path] + ".md"
    inside = re.fullmatch(r"docs/([^/]+\.md|.+\.(?:png|svg))", path)
    return inside[1] if inside else None


def page(path):
    """A page of the tree for the site: links to pages lead there; those to other files of the tree become their names.
    Python's Markdown wants an empty line before a list."""
    text = (ROOT / path).read_text(encoding="utf-8")

    def link(match):
        name, target = match[1], match[2]
        if re.match(r"https?:|#", target):
            return match[0]
        file, _, heading = target.partition("#")
        inside = placed(os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(file))))
        return f"[{name}]({inside}{'#' + heading if heading else ''})" if inside else name

    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)", link, text)
    text = re.sub(r"(?m)^(?![-\s|#])(.+)\n(?=- )", r"\1\n\n", text)
    return text + ("" if "glossary" in path else GLOSSARY)


def escaped(text):
    """Plain prose as Markdown; what is in backquotes stays."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_\[\]<>#|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def prose(text, language):
    """A comment as Markdown: paragraphs, indented lines as code, and the arguments below `Args:` as a list."""
    made, code, listed = [], [], False
    for line in [*text.split("\n"), "."]:
        indented = line.startswith("  ") or line.startswith(">>>") or (code and code[0].startswith(">>>") and code[-1] and line)
        if indented and line != "." and not listed:
            code.append(line)
            continue
        if not line and code:
            code.append(line)
            continue
        if code:
            made += ["", f"```{language}", textwrap.dedent("\n".join(code)).rstrip(), "```", ""]
            code = []
        if listed and line.startswith("    "):
            name = re.match(r" {4}(\*{0,2}\w+): (.*)", line)
            made.append(f"- `{name[1]}`: {escaped(name[2])}" if name else "  " + escaped(line.strip()))
            continue
        listed = line in ("Args:", "Attributes:")
        made += [escaped(line), ""] if listed else [escaped(line)]
    return "\n".join(made[:-1]).strip()


def commands(choir):
    def ask(*words):
        return subprocess.run([choir, "help", *words], check=True, capture_output=True, text=True).stdout

    overview = ask()
    made = ["# Commands", "", "What `choir help` and `choir help COMMAND` print.", "", "```text", overview.rstrip(), "```"]
    for line in re.findall(r"(?m)^  choir (?!help)([a-z ]+?)  +", overview):
        made += ["", f"## choir {line}", "", "```text", ask(*line.split()).rstrip(), "```"]
    return "\n".join([*made, "", "## Routers", "", "```text", ask("routers").rstrip(), "```"])


def c_reference():
    made = ["# The C interface", "", "Made from the comments of the public headers; [embedding](embedding.md) has whole "
            "programs."]  # fmt: skip
    for header in sorted((ROOT / "include" / "choir").glob("*.h*")):
        name = header.name.removesuffix(".in")
        text = header.read_text(encoding="utf-8")
        made += ["", f"## choir/{name}"]
        for block in re.split(r"\n\s*\n", text):
            block = re.sub(r"(?m)^(#ifndef CHOIR_(?:\w+_)?H|#define CHOIR_(?:\w+_)?H|#include .*|CHOIR_C_(BEGIN|END)|#endif)\n?", "",
                           block).strip()  # fmt: skip
            found = re.match(r"/\*(.*?)\*/\s*(.*)", block, re.S)
            comment, code = (re.sub(r"(?m)^ \*? ?", "", found[1]).strip(), found[2].strip()) if found else ("", block)
            names = re.findall(r"\b(choir_\w+)\(", code) if "CHOIR_API" in code else []
            names += re.findall(r"(?m)^}\s*(choir_\w+);|^typedef [^{;(]*?(\w+);|\(\*(choir_\w+)\)", code) if not names else []
            names = ["".join(n) if isinstance(n, tuple) else n for n in names]
            if names:
                made += ["", f"### {', '.join(dict.fromkeys(names))}"]
            if comment:
                made += ["", prose(comment, "c")]
            if code:
                made += ["", "```c", code, "```"]
    return "\n".join(made)


def python_reference():
    made = ["# The Python package", "", "Made from signatures and docstrings; [python](python.md) is the introduction."]

    def describe(node, prefix, depth):
        text = ast.get_docstring(node)
        if node.name.startswith("_") or not text:
            return
        head = f"{prefix}{node.name}"
        made.extend(["", f"{'#' * depth} {head}"])
        body = node if not isinstance(node, ast.ClassDef) else next(
            (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)  # fmt: skip
        if body is not None:
            given = ast.unparse(body.args).removeprefix("self, ").removeprefix("self")
            made.extend(["", "```python", f"{head}({given})", "```"])
        made.extend(["", prose(text, "python")])
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    describe(one, f"{node.name}.", depth + 1)

    package = ROOT / "python" / "choir"
    for file in [*sorted(package.glob("*.py")), *sorted((package / "torch").glob("*.py"))]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        public = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
                  and not node.name.startswith("_") and ast.get_docstring(node)]  # fmt: skip
        if file.name.startswith("_") and file.name != "__init__.py" or not public:
            continue
        module = ".".join(("choir", *file.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        made += ["", f"## {module}", "", prose(ast.get_docstring(tree) or "", "python")]
        for node in public:
            describe(node, "", 3)
    return "\n".join(made)


def stage(folder, choir):
    docs = folder / "docs"
    docs.mkdir()
    for path in [*ROOT_PAGES, *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]:
        (docs / placed(path)).write_text(page(path), encoding="utf-8")
    for path in [*(ROOT / "docs").rglob("*.png"), *(ROOT / "docs").rglob("*.svg")]:
        target = docs / placed(path.relative_to(ROOT).as_posix())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name, text in [("commands", commands(choir)), ("c-reference", c_reference()),
                       ("python-reference", python_reference())]:  # fmt: skip
        (docs / f"{name}.md").write_text(text + GLOSSARY, encoding="utf-8")
    (docs / "site.css").write_text(STYLE, encoding="utf-8")
    known = {p.stem for p in docs.glob("*.md")} - {"index"}
    listed = [name for names in NAV.values() for name in names]
    if known != set(listed) or len(listed) != len(known):
        sys.exit(f"site.py: NAV and the pages differ: {sorted(known ^ set(listed))}")
    nav = "".join(f"  - {title}:\n" + "".join(f"    - {name}.md\n" for name in names) for title, names in NAV.items())
    (folder / "mkdocs.yml").write_text(
        f"""site_name: choir
site_url: ""
use_directory_urls: false
docs_dir: docs
theme:
  name: mkdocs
  highlightjs: false
  nav_style: dark
extra_css: [site.css]
plugins: [search]
markdown_extensions:
  - sane_lists
  - toc:
      slugify: !!python/name:site_slug.slug
nav:
  - Home: index.md
{nav}""",
        encoding="utf-8",
    )


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        self.loads += [found[key] for key in ("src", "href") if tag in ("script", "img", "link") and found.get(key)]


def check(out):
    """Every link within the site leads to a file and a heading; no page loads anything from elsewhere; the search finds."""
    pages = {file.relative_to(out).as_posix(): Links(file.read_text(encoding="utf-8")) for file in out.rglob("*.html")}
    bad = []
    for name, one in pages.items():
        for load in one.loads:
            if re.match(r"(https?:)?//", load):
                bad.append(f"{name} loads {load}")
        for link in one.links + one.loads:
            where = urllib.parse.urlsplit(link)
            if where.scheme or where.netloc or name == "404.html":
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), urllib.parse.unquote(where.path))) if where.path else name
            target = "index.html" if target == "." else target
            if not (out / target).exists():
                bad.append(f"{name}: no such file: {link}")
            elif where.fragment and target in pages and urllib.parse.unquote(where.fragment) not in pages[target].ids:
                bad.append(f"{name}: no such heading: {link}")
    index = json.loads((out / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    written = [f"{one['title']} {one['text']}".lower() for one in index if not one["location"].startswith("changelog")]
    bad += [f"the search finds no page for '{word}'" for word in SEARCHED if not any(word in text for text in written)]
    if bad:
        sys.exit("site.py:\n" + "\n".join(sorted(set(bad))))
    return len(pages)


def main():
    choir = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "choir")
    out = pathlib.Path(os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else ROOT / "build" / "site"))
    if not os.access(choir, os.X_OK):
        sys.exit(f"site.py: {choir} is not there; build choir first")
    if out.is_dir() and os.listdir(out) and not (out / "search" / "search_index.json").exists():
        sys.exit(f"site.py: {out} holds something else than a site, which would be removed; name a new folder")
    with tempfile.TemporaryDirectory() as folder:
        stage(pathlib.Path(folder), choir)
        # `python3 -m mkdocs` with the anchors of this file; PYTHONPATH lets mkdocs.yml name it.
        shutil.copy(__file__, pathlib.Path(folder) / "site_slug.py")
        config = pathlib.Path(folder) / "mkdocs.yml"
        run = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean", "-f", str(config), "-d", str(out)]
        done = subprocess.run(run, env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}, check=False)
        if done.returncode:
            sys.exit("site.py: mkdocs refuses the pages; its warnings are errors here")
    print(f"{out}: {check(out)} pages; read them with: {sys.executable} -m http.server -d {out}")


if __name__ == "__main__":
    main()
