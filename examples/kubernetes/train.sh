#!/bin/sh
# train.sh RANKS OPTION...: `choir train OPTION...` by mpirun on RANKS processes, and again from the newest checkpoint when
# one dies, on half as many each time: a machine that is gone stays gone. The losses are those of one process whatever the
# number, as long as it divides train.grad_chunks. OPTION has --out RUN. MPIRUN="mpirun --hostfile hosts" gives mpirun options.
set -u
ranks=$1
shift
run='' before=''
for word; do
  [ "$before" != --out ] || run=$word
  before=$word
done
[ -n "$run" ] || { echo "train.sh: --out RUN is missing" >&2; exit 2; }
while :; do
  if [ -e "$run/metrics.jsonl" ]; then set -- --resume --out "$run"; fi
  # shellcheck disable=SC2086 # options are words
  ${MPIRUN:-mpirun} -np "$ranks" "${CHOIR:-choir}" train "$@"
  status=$?
  # Done; wrong options or data, which no restart mends; or stopped as asked, after saving.
  case $status in 0 | 1 | 2 | 3) exit $status ;; esac
  [ "$ranks" -gt 1 ] || exit $status
  ranks=$((ranks / 2))
  echo "train.sh: a process died (status $status); going on with $ranks" >&2
done
