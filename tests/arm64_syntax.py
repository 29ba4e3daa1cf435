"""arm64_syntax.py BUILD: compiles the library's sources for arm64, without making code or libraries: what only one architecture has
shows. By the cross compiler (Debian: gcc-aarch64-linux-gnu) and the commands of BUILD, with the headers that are installed here."""

import concurrent.futures
import json
import pathlib
import shlex
import shutil
import subprocess
import sys

COMPILER = "aarch64-linux-gnu-gcc"
FOREIGN = ("-mavx", "-mamx", "-mfma")  # flags of files for x86-64
PAIRS = "-DCH_ISA_SUFFIX=avx512_bf16"  # the variant that is called bfdot for arm64
BFDOT = ["-DCH_ISA_SUFFIX=bfdot", "-DCH_BFDOT", "-march=armv8.2-a+bf16"]


def commands(build):
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        words = words[words.index(next(word for word in words if word.startswith("-"))) : words.index("-o")]
        own = "/src/" in entry["file"] and entry["file"].endswith(".c") and "-DCHOIR_DOUBLE" not in words
        pairs = PAIRS in words
        if own and (pairs or not any(word.startswith(FOREIGN) for word in words)):
            flags = [word for word in words if not word.startswith("-m") and word != PAIRS] + (BFDOT if pairs else [])
            command = [COMPILER, "-fsyntax-only", "-Werror", *flags, "-idirafter", "/usr/include", entry["file"]]
            yield (entry["file"], pairs), command


def compiled(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main(build):
    if not shutil.which(COMPILER):
        print(f"NOT TESTED: arm64: {COMPILER} (Debian: gcc-aarch64-linux-gnu) is not installed")
        return 77
    wanted = dict(commands(build))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = list(pool.map(compiled, wanted.values()))
    print("".join(one.stderr for one in made)[:4000], f"{len(made)} files", sep="")
    return any(one.returncode for one in made) or len(made) < 100


sys.exit(main(sys.argv[1]))
