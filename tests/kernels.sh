#!/bin/sh
# kernels.sh ROOT ARGS: clang takes the kernels as CUDA without a warning (test_nvrtc asks NVIDIA's compiler). ARGS: the file
# of ops' structs that CMake makes for the kernels.
root=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1
# In the order of CMakeLists.txt.
sed -n '/choir_embed_text(/,/)/p' CMakeLists.txt | grep -o 'src/[a-z/]*\.cl\.h\|src/[a-z/]*/args\.h\|device_args\.cl\.h' |
  sed "s#^device_args\.cl\.h#$2#" | xargs cat >"$work/kernels.cu"
grep -q 'KERNEL(tally)' "$work/kernels.cu" || { echo "the text of the kernels was not found in CMakeLists.txt" >&2; exit 1; }
cp tests/device/cuda_words.h "$work"
cd "$work" || exit 1

clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_75 -nocudainc -nocudalib -Wno-unknown-cuda-version -include cuda_words.h \
  -Wall -Wno-unused-function -Werror -fsyntax-only kernels.cu
