"""public_calls.py LIBRARY [N]: calls every function of the public headers with each pointer NULL, each number 0, -1, the
smallest and the largest, each text empty or without an end, and the same with each field of each struct that a call
is given. A call may refuse or do harmless work; a crash, a report of a sanitizer, a minute without an end, or a refusal
without a message is a failure. A handle that is not NULL has to be a live one, and an array as long as its size says.
With N instead: every function N times as it is meant to be called, and what is allocated must not grow.
"""

import ctypes
import gc
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cffi

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "python"))
from choir import _headers

TEXT = _headers.declarations("choir.h", set())
ffi = cffi.FFI()
ffi.cdef(TEXT)

# name: (name of a parameter, whether the call only reads what it points to) of each
FUNCTIONS = {
    name: [
        (re.search(r"\(\*(\w+)\)|(\w+)$", one).group(1) or one.split()[-1].strip("*"), "const" in one)
        for one in re.split(r",\s*(?![^()]*\))", given.strip())
        if one != "void"
    ]
    for name, given in re.findall(r"^[\w \*]+?\b(choir_\w+)\(([^;]*)\);", TEXT, re.M)
}
# Sizes of the caller's own arrays: there is no such array.
SIZES = {
    "choir_backend_get_device": {"size"},
    "choir_checkpoint_find": {"room"},
    "choir_data_build": {"source_count"},
    "choir_generate": {"count", "size"},
    "choir_layer_forward": {"n"},
    "choir_route_stats_get_frequent": {"most"},
    "choir_route_stats_get_typical": {"most"},
    "choir_score": {"count", "size"},
    "choir_tensors_write": {"count"},
    "choir_tokenizer_decode": {"count"},
    "choir_tokenizer_encode": {"length"},
}
ONLY_SHOWN = {"choir_routing", "choir_route_stats"}  # structs that only the library fills
COUNTING = re.compile(
    r"(count|rank|size|eos|mask_token|sequences|length|layers|expert|frequent|typical)$|_looks_|_agree")
RELEASING = re.compile(r"_(free|clear)$")
MAKES = re.compile("(_create|_init|generate|score|_route|_route_stats)$")  # fills a struct that is to be freed


def odd_values(kind):
    """What to try in a place of that kind: (how it is called, value)."""
    if kind.kind in ("pointer", "function"):
        return [("NULL", ffi.NULL)]
    if kind.kind == "array" and kind.item.cname == "char":
        return [("empty", b"\0"), ("without an end", b"x" * kind.length)]
    if kind.kind == "array":
        return [("-1", [-1] * kind.length)] if kind.item.kind == "primitive" else []
    if kind.cname in ("double", "float"):
        return [(str(x), x) for x in (0.0, -1.0, 1e308, float("nan"), float("inf"))]
    bits, signed = 8 * ffi.sizeof(kind), int(ffi.cast(kind, -1)) < 0
    most = 2 ** (bits - signed) - 1
    return [("0", 0), ("largest", most)] + ([("-1", -1), ("smallest", -most - 1)] if signed else [])


def cases_of(kind, label, path, skip):
    """Odd values for a parameter and for the fields of its struct: (label, path of fields, value)."""
    for word, value in odd_values(kind) if kind.kind != "struct" else []:
        if not (label.split(".")[-1] in skip and word in ("largest", "-1")):
            yield f"{label}={word}", path, value
    inner = kind.item if kind.kind == "pointer" else kind
    if inner.kind == "struct" and inner.cname not in ONLY_SHOWN:
        for name, field in inner.fields or []:
            yield from cases_of(field.type, f"{label}.{name}", path + [name], skip)


def all_cases(lib):
    """Every call: (function, what is said of it, path to the odd value, that value)."""
    for name, parameters in FUNCTIONS.items():
        kinds = ffi.typeof(getattr(lib, name)).args
        assert len(kinds) == len(parameters), name
        yield name, "", [], None
        for i, ((parameter, read), kind) in enumerate(zip(parameters, kinds)):
            for label, path, value in cases_of(kind, parameter, [i], SIZES.get(name, ())):
                if read or len(path) == 1:
                    yield name, label, path, value


# Calls are given these otherwise: texts by the name of their parameter or field, and numbers.
TEXTS = {
    "key": "train.learning_rate", "value": "0.1", "router": "expert_choice", "routing": "batch", "recipe": "constant",
    "checkpoint": "model", "from": "model", "directory": "data", "data": "data", "tokenizer": "tokenizer.model",
    "path": "model", "output": "new", "out": "new", "text": "ka lo", "name": "expert_choice", "split": "dev",
    "backend": "cpu", "compute": "fp32", "what": "words", "type": "char",
}  # fmt: skip
TEXTS_OF = {
    "choir_config_load.path": "config.json", "choir_config_save.path": "new", "choir_tokenizer_load.path":
    "tokenizer.model", "choir_tensors_load.path": "model/model.safetensors", "choir_tensors_write.path": "new",
    "choir_tensors_find.name": "embedding.weight", "choir_tensors_metadata.key": "choir_header",
    "choir_task_load.name": "task.json", "choir_model_save.checkpoint": "new", "choir_trainer_save.checkpoint": "new",
    "choir_trainer_resume.checkpoint": "trained", "choir_data_build.name": "some", "choir_tensors_write.name": "some",
    "choir_task_score.data": "set", "choir_finetune.data": "set",
}  # fmt: skip
NUMBERS = {"B": 2, "T": 8, "n": 8, "e": 4, "experts": 4, "tokens": 8, "d_model": 8, "d_hidden": 8, "count": 1,
           "room": 4096, "length": 4, "source_count": 1, "steps": 2, "slots": 1, "chunk": 8, "batch": 2,
           "max_tokens": 3, "vocab_size": 16, "threads": 1, "seconds": 60.0, "dims": 1, "bytes": 16}  # fmt: skip


class World:
    """Handles, structs and arrays that calls are given; everything that was made stays alive with it."""

    def __init__(self, lib):
        self.lib, self.kept, self.handles = lib, [], {}

    def keep(self, value):
        self.kept.append(value)
        return value

    def call(self, name, *given):
        if getattr(self.lib, name)(*given):
            sys.exit(f"{name}: {ffi.string(self.lib.choir_error_message()).decode()}")

    def text(self, value):
        return self.keep(ffi.new("char[]", value.encode()))

    def handle(self, name):
        """A live handle of that kind."""
        if name not in self.handles:
            made = self.keep(ffi.new(f"{name} **"))
            self.make(name, made)
            self.handles[name] = made[0]
        return self.handles[name]

    def make(self, name, made):
        files = {"choir_tokenizer": (b"tokenizer.model",), "choir_data": (b"data",), "choir_task": (b"task.json",),
                 "choir_tensors": (b"model/model.safetensors", 1)}  # fmt: skip
        if name in files:
            self.call(name + "_load", *files[name], made)
        elif name == "choir_config":
            self.call("choir_config_load", b"config.json", made)
        elif name == "choir_ranks":
            self.call("choir_ranks_create", made)
        elif name == "choir_model":
            self.call("choir_model_load", b"model", self.struct("choir_model_options"), made, ffi.NULL)
            self.call("choir_model_set_routing", made[0], b"threshold")
        elif name == "choir_session":
            self.call("choir_session_create", self.handle("choir_model"), ffi.NULL, made)
        elif name == "choir_trainer":
            model = self.keep(ffi.new("choir_model **"))
            self.call("choir_model_load", b"model", self.struct("choir_model_options"), model, ffi.NULL)
            self.call("choir_trainer_create", model[0], ffi.NULL, made)
        elif name == "choir_layer":
            x, weights = self.keep(ffi.new("float[]", 64)), self.struct("choir_layer_weights")
            self.call("choir_layer_create", self.struct("choir_layer_options"), made)
            self.call("choir_layer_forward", made[0], weights, 8, x, ffi.NULL, ffi.NULL, 1, x)

    def struct(self, name, function="", read=True):
        """What a call reads, filled as a caller would; what it writes, empty."""
        made = self.keep(ffi.new(f"{name} *"))
        if read and name != "choir_route_stats":
            self.fill(made, function)
        elif name == "choir_route_stats" and "stats_" in function and not re.search("init|clear", function):
            self.call("choir_route_stats_init", 4, 16, made)
        return made

    def fill(self, struct, function):
        name = ffi.typeof(struct).item.cname
        if name + "_default" in FUNCTIONS:
            getattr(self.lib, name + "_default")(struct, ffi.sizeof(name))
        for field, place in ffi.typeof(struct).item.fields:
            kind = place.type
            if field in ("size", "reserved", "resume", "ranks"):
                continue
            if kind.kind == "struct":
                self.fill(ffi.addressof(struct[0], field), function)
            elif kind.cname == "char[128]":
                setattr(struct, field, TEXTS_OF[f"{function}.{field}"].encode())
            elif kind.kind in ("pointer", "function") or field in NUMBERS and not getattr(struct, field):
                setattr(struct, field, self.value(kind, function, field))
        return None

    def value(self, kind, function, name, read=True):
        """An argument or a field of that kind and name."""
        inner = getattr(kind, "item", kind)
        if "function" in (kind.kind, inner.kind):  # a callback, which stops what asks it
            return self.keep(ffi.callback(kind, lambda *_: 1 if kind.result.kind == "primitive" else None))
        if kind.kind != "pointer":
            return NUMBERS.get(name, 0)
        if inner.kind == "pointer" and inner.item.cname == "char" and read:  # a list of texts
            words = {"inputs": ["corpus.txt"]}.get(name, ["key", "value"])
            return self.keep(ffi.new("char *[]", [self.text(word) for word in words] + [ffi.NULL]))
        if inner.kind == "struct" and inner.fields is None:
            return ffi.NULL if RELEASING.search(function) else self.handle(inner.cname)
        if inner.kind == "struct":
            return self.struct(inner.cname, function, read)
        if inner.cname == "char" and read:
            return self.text(TEXTS_OF.get(f"{function}.{name}") or TEXTS.get(name, "ka lo"))
        return ffi.NULL if inner.kind == "void" else self.keep(ffi.new(f"{inner.cname}[]", 1 << 16))


CONFIG = """{"model": {"layers": 2, "d_model": 8, "d_hidden": 8, "heads": 2, "experts": 4, "router": {"name":
"switch_top1"}}, "train": {"sequence_length": 8, "batch_sequences": 2, "steps": 2}}"""
TASK = """{"name": "made-up", "format": "tsv", "splits": {"train": ["train.tsv"], "dev": ["dev.tsv"]}, "columns":
{"text": ["text"]}, "label": ["label"], "labels": [{"word": " ka", "values": ["good"]}, {"word": " lo", "values":
["fair"]}], "template": "{text}\\nis", "cut": "text"}"""


def prepare(lib):
    """The files that calls are given, made by the library in the working directory."""
    world, words = World(lib), ["ka", "lo", "mi", "ten", "sur", "re", "vo"]
    pathlib.Path("corpus.txt").write_text("".join(f"{words[i % 7]} {words[i * i % 5]}.\n" for i in range(3000)))
    pathlib.Path("config.json").write_text(CONFIG)
    pathlib.Path("task.json").write_text(TASK)
    os.mkdir("set")
    for split in ("train", "dev"):
        pathlib.Path(f"set/{split}.tsv").write_text("text\tlabel\nka mi re\tgood\nlo\tfair\n")
    train = world.struct("choir_tokenizer_train_options", "choir_tokenizer_train")
    build = world.struct("choir_data_build_options", "choir_data_build")
    train.vocab_size, train.output, build.output = 280, world.text("tokenizer.model"), world.text("data")
    for options in (train, build):
        options.field = options.separator = options.progress = ffi.NULL
    world.call("choir_tokenizer_train", train)
    world.call("choir_data_build", build)
    config, model = world.handle("choir_config"), ffi.new("choir_model **")
    pieces = lib.choir_tokenizer_vocab_size(world.handle("choir_tokenizer"))
    world.call("choir_config_set", config, b"vocab_size", str(pieces).encode())
    world.call("choir_model_create", config, 1, ffi.NULL, model)
    world.call("choir_model_save", model[0], world.handle("choir_tokenizer"), b"model")
    world.call("choir_trainer_save", world.handle("choir_trainer"), ffi.NULL, b"trained")


def put(given, path, value):
    """Puts an odd value where a path leads, from an argument on."""
    if len(path) == 1:
        given[path[0]] = value
        return
    at = given[path[0]]
    for name in path[1:-1]:
        at = getattr(at, name)
    if isinstance(value, bytes):
        ffi.memmove(getattr(at, path[-1]), value, len(value))
    else:
        setattr(at, path[-1], value)


def call_from(lib, first):
    """Makes the calls from that one on, and says before each which it is."""
    name = world = None
    for number, (function, label, path, value) in enumerate(all_cases(lib)):
        if number < first:
            continue
        if function != name:
            name, world = function, World(lib)
        for made in ("new", "new.index.json"):
            shutil.rmtree(made, ignore_errors=True) if os.path.isdir(made) else pathlib.Path(made).unlink(missing_ok=True)
        call = getattr(lib, name)
        given = [world.value(kind, name, p, read) for kind, (p, read) in zip(ffi.typeof(call).args, FUNCTIONS[name])]
        if path:
            put(given, path, value)
        print(number, f"{function}({label})", flush=True)
        signal.alarm(60)
        result = call(*given)
        signal.alarm(0)
        if ffi.typeof(call).result.cname == "int" and not COUNTING.search(name):
            message = ffi.string(lib.choir_error_message())
            if result and (not 0 < result <= lib.CHOIR_ERROR_FULL or not message):
                sys.exit(f"Error: result {result}, message '{message.decode()}'")
    print("done", flush=True)


LIBC = ctypes.CDLL(None)


class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                      "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def release(lib, name, given):
    """Frees what a call has made, as its caller would."""
    for value, (_, read), kind in zip(given, FUNCTIONS[name], ffi.typeof(getattr(lib, name)).args):
        inner = getattr(kind, "item", kind)
        if read or kind.kind != "pointer" or not value:
            continue
        if inner.kind == "pointer" and value[0]:
            free = getattr(lib, f"{inner.item.cname}_free", None)
            (free or LIBC.free)(value[0] if free else ctypes.c_void_p(int(ffi.cast("intptr_t", value[0]))))
            value[0] = ffi.NULL
        elif inner.kind == "struct" and inner.fields and f"{inner.cname}_free" in FUNCTIONS and MAKES.search(name):
            getattr(lib, f"{inner.cname}_free")(value)


def call_often(lib, most):
    """Every function that often, or for twenty seconds, and what the later half of its calls has left behind."""
    growing, LIBC.mallinfo2.restype = 0, Allocated

    def allocated():
        gc.collect()
        info = LIBC.mallinfo2()
        return info.uordblks + info.hblkhd

    for name in FUNCTIONS:
        call, world = getattr(lib, name), World(lib)
        given = [world.value(kind, name, p, read) for kind, (p, read) in zip(ffi.typeof(call).args, FUNCTIONS[name])]
        begin, calls, half, before = time.monotonic(), 0, 0, 0
        while calls < most and time.monotonic() < begin + 20:
            if not half and (calls >= most // 2 or time.monotonic() > begin + 10):
                half, before = calls, allocated()
            call(*given)
            release(lib, name, given)
            calls += 1
            if os.path.lexists("new"):
                shutil.rmtree("new", ignore_errors=True) if os.path.isdir("new") else os.unlink("new")
        grown = allocated() - before
        grows = grown > 32768 + 8 * (calls - half)
        growing += grows
        print(f"{name}: {calls} calls, the last {calls - half} left {grown} bytes{' ERROR' * grows}", flush=True)
    print(f"{len(FUNCTIONS)} functions, {growing} grow")
    return growing > 0


def main(library, often):
    linked = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    sanitizer = re.search(r"libasan\S* => (\S+)", linked)
    environment = dict(os.environ, PYTHONMALLOC="malloc", OMP_NUM_THREADS="1")
    if sanitizer:
        environment["LD_PRELOAD"] = sanitizer.group(1)
        environment["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096"
    failures, first = 0, 0
    with tempfile.TemporaryDirectory() as directory:

        def run(*what, capture=True):
            command = [sys.executable, os.path.abspath(__file__), library, *what]
            return subprocess.run(command, cwd=directory, env=environment, capture_output=capture, text=True)

        ready = run("prepare")
        if ready.returncode:
            sys.exit(ready.stderr)
        if often:
            return run("often", often, capture=False).returncode
        while (one := run("from", str(first))).returncode:  # once more behind the call that did not come back
            last = one.stdout.strip().split("\n")[-1]
            if not last:
                sys.exit(one.stderr)
            reasons = re.findall(r"SUMMARY: .*|runtime error: .*|\w*Error: .*", one.stderr)
            print(f"ERROR: {last}: {reasons[-1] if reasons else f'status {one.returncode}'}", flush=True)
            failures, first = failures + 1, int(last.split()[0]) + 1
    print(f"{one.stdout.count('choir_')} calls from number {first} on, {failures} failed before")
    return failures > 0


if __name__ == "__main__":
    if len(sys.argv) == 2 or sys.argv[2].isdigit():
        sys.exit(main(os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
    os.environ.pop("LD_PRELOAD", None)  # for programs that the library starts
    if sys.argv[2] == "prepare":
        prepare(ffi.dlopen(sys.argv[1]))
    elif sys.argv[2] == "often":
        sys.exit(call_often(ffi.dlopen(sys.argv[1]), int(sys.argv[3])))
    else:
        call_from(ffi.dlopen(sys.argv[1]), int(sys.argv[3]))
