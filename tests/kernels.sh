#!/bin/sh
# kernels.sh ROOT BUILD [ROUTER...]: the kernels of devices, without one. OpenCL C compiles them without a warning; a training
# step of each router, an evaluation, and a few tokens run under oclgrind, which reports every race between items, of
# one group or of several, and what is out of bounds; nvcc, where it is, compiles them for four kinds of GPU
# without a warning and without registers spilled.
root=$1 choir=$2/choir
shift 2
routers=${*:-expert_choice switch_top1}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root/src/device/kernels" || exit 1
# In the order of CMakeLists.txt.
sed -n 's|.*src/device/kernels/|&|; /choir_embed_text(/,/)/p' "$root/CMakeLists.txt" | grep -o '[a-z]*\.cl\.h\|args\.h' |
  xargs cat >"$work/kernels.cl"
grep -q 'KERNEL(tally)' "$work/kernels.cl" || { echo "the text of the kernels was not found in CMakeLists.txt" >&2; exit 1; }
cp "$work/kernels.cl" "$work/kernels.cu"
cd "$work" || exit 1

clang -x cl -cl-std=CL1.2 -Xclang -finclude-default-header -Wall -Wno-unused-function -Werror -fsyntax-only kernels.cl || exit 1

if command -v nvcc >/dev/null; then
  for gpu in 75 80 90 100; do
    nvcc -arch=sm_$gpu -cubin -Werror all-warnings --ptxas-options=-v -o kernels.cubin kernels.cu >nvcc.log 2>&1 || { cat nvcc.log >&2; exit 1; }
    if grep -E '[1-9][0-9]* bytes spill' nvcc.log >&2; then
      echo "sm_$gpu: registers are spilled" >&2
      exit 1
    fi
  done
else
  echo "NOT TESTED: the kernels as CUDA; there is no nvcc"
fi

# A text, a model of a few numbers, one step; all but expert choice with today's block and AdamW. Nothing is held out: training
# would write 48 tokens as a sample, which takes minutes here.
watched() {
  CHOIR_OPENCL=$library timeout 800 oclgrind --build-options -cl-opt-disable --data-races "$choir" "$@" --backend opencl --threads 1 2>&1
}
races() {
  case $1 in
    expert_choice) block= ;;
    dense) block="--set experts=1" ;;
    *) block="--set position=rope --set activation=swiglu --set kv_heads=1 --set qk_norm=true --set optimizer=adamw --set dropout=0.1" ;;
  esac
  # shellcheck disable=SC2086 # words of options
  watched train --config config.json --data data --out "$1" --set router.name="$1" $block &&
    case $1 in switch_top1) ;; *) watched eval "$1" --text short --sequences 1 ;; esac &&
    case $1 in expert_choice | switch_top1) watched generate "$1" --prompt a --max-tokens 2 ;; esac
}
library=/usr/lib/oclgrind/liboclgrind-rt.so
if [ -r $library ]; then
  i=0
  while [ $i -lt 4000 ]; do echo "a few words of text, number $i, and $((i * i)) more"; i=$((i + 1)); done >text
  head -n 1 text >short
  "$choir" tokenizer train --out t.model --vocab-size 300 text >/dev/null 2>&1 &&
    "$choir" data build --out data --holdout 0 --tokenizer t.model text >/dev/null 2>&1 || { echo "no data" >&2; exit 1; }
  echo '{"model": {"name": "races", "layers": 2, "d_model": 8, "d_hidden": 16, "heads": 2, "experts": 4},
    "train": {"sequence_length": 8, "batch_sequences": 1, "steps": 1, "learning_rate": 0.05, "eval_every": 0, "eval_sequences": 1}}' >config.json
  for router in $routers; do
    races "$router" >"$router.log" || { cat "$router.log" >&2; exit 1; }
    if grep -iE -A8 'race|invalid' "$router.log" >&2; then
      echo "$router: see above" >&2
      exit 1
    fi
    grep -q 'done: 1 steps' "$router.log" || { cat "$router.log" >&2; exit 1; }
  done
else
  echo "NOT TESTED: races of kernels; there is no oclgrind"
  exit 77
fi
