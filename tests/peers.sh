#!/bin/sh
# peers.sh SOURCE BUILD: lab/peers compares choir with PyTorch on tiny cases; 77 (skipped) where there is no PyTorch.
command -v python3 >/dev/null || exit 77
# NaN must not hide behind a number that comes first; a worker that ended unasked fails its case, not the others.
for python in /usr/bin/python3 python3; do
  "$python" -c 'import numpy' 2>/dev/null || continue
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$1/lab/peers" "$python" -c '
from sides import Side, largest
nan = largest([1.0, float("nan"), 2.0])
assert nan != nan and largest([1.0, 2.0]) == 2
side = Side("gone", ["echo", "{}"], {})
side.process.wait()
try:
    side.ask("run")
    raise SystemExit("a worker that is gone answers")
except ChildProcessError:
    side.close()' || exit 1
  break
done
exec "$1/lab/peers/run" --quick --build "$2"
