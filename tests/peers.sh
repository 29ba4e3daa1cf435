#!/bin/sh
# peers.sh SOURCE BUILD: bench/peers compares choir with PyTorch on tiny cases; 77 (skipped) where there is no PyTorch.
command -v python3 >/dev/null || exit 77
# NaN must not hide behind a number that comes first.
if python3 -c 'import numpy' 2>/dev/null; then
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$1/bench/peers" python3 -c '
from sides import largest
nan = largest([1.0, float("nan"), 2.0])
assert nan != nan and largest([1.0, 2.0]) == 2' || exit 1
fi
exec "$1/bench/peers/run" --quick --build "$2"
