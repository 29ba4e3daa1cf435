#!/bin/sh
# infer.sh SOURCE BUILD: a program that is linked with libchoir_infer alone loads a checkpoint and writes what choir does.
# The library has no function that trains, and needs no library that only training or reading archives needs.
set -eu
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
${CC:-cc} -Wall -Werror "-I$source/include" "-I$build/include" "$source/tests/embed/infer.c" "$build/libchoir_infer.so" \
  "-Wl,-rpath,$build" -o infer
for i in $(seq 300); do echo "ka lo mi ten $i"; done >text
echo '{"model": {"layers": 2, "d_model": 32, "d_hidden": 48, "heads": 2, "experts": 4, "router": {"name": "switch_top1"}}, "train": {"sequence_length": 32,
  "batch_sequences": 8}}' >config.json
{
  "$build/choir" tokenizer train --vocab-size 280 --out tokenizer.model text
  "$build/choir" init config.json --tokenizer tokenizer.model --out model
} >log 2>&1 || { cat log; exit 1; }
./infer model >said
"$build/choir" generate model --prompt ka --max-tokens 8 --json >json
grep -qF "$(head -n 1 said | cut -c1-8)" json || { cat said json; exit 1; }
nm -D --defined-only "$build/libchoir_infer.so" >symbols
grep -o 'choir_[a-z_]*' "$build/infer.map" >names
while read -r name; do
  grep -q " $name@" symbols || { echo "cmake/infer.cmake: $name is no function of libchoir" >&2; exit 1; }
done <names
! nm -D --defined-only "$build/libchoir_infer.so" | grep -E 'train|data_build|finetune' || exit 1
! nm --defined-only "$build/libchoir_infer.so" | grep -E ' (ch_run_loop|ch_text_open|ch_tune_hash)$' || exit 1
! readelf -d "$build/libchoir_infer.so" | grep -E 'libarchive|sentencepiece_train' || exit 1
