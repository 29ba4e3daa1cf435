#!/bin/sh
# kernels.sh ROOT: compilers of devices take the kernels without a warning: clang as OpenCL C; nvcc, where it is, as CUDA for
# four kinds of GPU, with no register spilled.
root=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1
# In the order of CMakeLists.txt.
sed -n '/choir_embed_text(/,/)/p' CMakeLists.txt | grep -o 'src/[a-z/]*\.cl\.h\|src/[a-z/]*/args\.h' |
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
