#!/bin/sh
# peers.sh SOURCE BUILD: bench/peers compares choir with PyTorch on tiny cases; 77 (skipped) where there is no PyTorch.
command -v python3 >/dev/null || exit 77
exec "$1/bench/peers/run" --quick --build "$2"
