"""publisher.py: writes publisher.toml to the files that contain the publisher's name, address and pages. --check: names the files
that differ instead. --placeholders: names the values that are not set yet. Needs Python 3.11."""

import pathlib
import re
import sys
import tomllib

SOURCE = pathlib.Path(__file__).resolve().parents[1]
PAGES = {"homepage": "Homepage", "documentation": "Documentation", "source": "Source", "issues": "Issues"}


def publisher():
    return tomllib.loads((SOURCE / "packaging" / "publisher.toml").read_text(encoding="utf-8"))


def placeholders(data):
    return [key for key, value in data.items() if not value or re.search(r"\bexample\.org\b", value)]


def with_line(text, start, value, after):
    """The text whose line `start` has the value: added after another line, or left out where there is no value."""
    text = re.sub(rf"(?m)^{re.escape(start)}.*\n", "", text, count=1)
    return re.sub(rf"(?m)^{re.escape(after)}.*\n", lambda found: f"{found[0]}{start}{value}\n", text, count=1) if value else text


def pyproject(text, data, known):
    author = f'name = "{data["name"]}"' + (f', email = "{data["email"]}"' if known["email"] else "")
    pages = {**{label: known[key] for key, label in PAGES.items() if known[key]}, "Paper": "https://arxiv.org/abs/2202.09368"}
    text = with_line(text, "authors = ", f"[{{ {author} }}]", "license-files = ")
    return with_line(text, "urls = ", "{ " + ", ".join(f'{label} = "{page}"' for label, page in pages.items()) + " }", "keywords = ")


def control(text, data, known):
    text = with_line(text, "Homepage: ", known["homepage"], "Priority: ")
    return with_line(text, "Maintainer: ", f"{data['name']} <{data['email']}>", "Priority: ")


def changelog(text, data, known):
    return re.sub(r"(?m)^ -- .*>  ", f" -- {data['name']} <{data['email']}>  ", text, count=1)


def copyrights(text, data, known):
    text = with_line(text, "Source: ", known["source"], "Upstream-Name: ")
    return re.sub(r"(?m)^(Copyright: \d+ ).*", lambda found: found[1] + data["name"], text, count=1)


def citation(text, data, known):
    text = with_line(text, "repository-code: ", known["source"], "license: ")
    return with_line(text, "  - name: ", f'"{data["name"]}"', "authors:")


FILES = {
    "pyproject.toml": pyproject,
    "debian/control": control,
    "debian/changelog": changelog,
    "debian/copyright": copyrights,
    "CITATION.cff": citation,
}


def differ(data):
    """{file: text} of those that would change."""
    unknown = placeholders(data)
    known = {key: "" if key in unknown else value for key, value in data.items()}
    found = {}
    for name, change in FILES.items():
        text = (SOURCE / name).read_text(encoding="utf-8")
        if change(text, data, known) != text:
            found[name] = change(text, data, known)
    return found


def main(what=""):
    data = publisher()
    if what == "--placeholders":
        print(", ".join(placeholders(data)))
        return 0
    changed = differ(data)
    for name, text in changed.items():
        print(f"packaging/publisher.py: {name} {'differs from packaging/publisher.toml' if what else 'is written'}")
        if not what:
            (SOURCE / name).write_text(text, encoding="utf-8")
    return bool(what and changed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
