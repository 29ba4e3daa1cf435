#!/bin/sh
# bench_gpu.sh ROOT BUILD: rehearses lab/gpu without a GPU, so that it works when one is at hand: every part that is named
# here must end well, and find what it looks for.
root=$1 build=$2
python=${CHOIR_PYTHON:-/usr/bin/python3}
"$python" -c 'import cffi, torch' 2>/dev/null || {
  echo "NOT TESTED: lab/gpu; there is no Python with cffi and PyTorch"
  exit 0
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root" && lab/gpu/pack --here "$build" "$work" >"$work/pack.log" || exit 1
CHECK_PYTHON=$python CHECK_PACKED=$work/packed.tar.xz OUT=$work/out lab/gpu/run --dry --budget 900 \
  --only devices,moe_bench,routers,train,tests >"$work/run.log" 2>&1 || { cat "$work/run.log" >&2; exit 1; }
"$python" - "$work/out/result.json" <<'END' || { cat "$work/run.log" "$work/out/log.txt" >&2; exit 1; }
import json, sys
parts = json.load(open(sys.argv[1]))["parts"]
def codes(found):
    if isinstance(found, dict):
        return ([found["rc"]] if "rc" in found else []) + [c for value in found.values() for c in codes(value)]
    return []
for name in ("devices", "moe_bench", "routers", "train", "tests"):
    bad = [c for c in codes(parts[name]) if c != 0]
    if "exception" in parts[name] or bad and name != "devices": # ldd | grep finds nothing that is missing
        sys.exit(f"{name}: {bad} {parts[name].get('exception')}")
beside = parts["moe_bench"]["model"] # of an H100, which this machine does not reach
kinds = {what.split()[0] for what in beside}
if kinds != {"moe", "select", "head", "adafactor", "attention"} or len(beside) < 10 or not all(c["ratio"] > 1.1 for what, c in beside.items() if ": " not in what): # small parts print as 0.0 %
    sys.exit(f"moe_bench: beside the model's prediction: {beside}")
losses = parts["train"]["pico losses"]
if not losses["twice the same"] or not losses["largest difference"] < 1e-4:
    sys.exit(f"train: {losses}")
if len(parts["tests"]["op_tests"]["ok"]) != 2:
    sys.exit(f"tests: {parts['tests']['op_tests']}")
END
