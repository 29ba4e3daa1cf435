#!/bin/sh
# make.sh CHOIR: VERSION.tar.gz beside this file, made by the program of that version: data, a run of four steps, the
# tokens that it continues a text with, and, from 0.3 on, an export. test_golden reads them with today's program. A new
# version adds its own and leaves the others as they are.
set -e
choir=$(readlink -f "$1") here=$(dirname "$(readlink -f "$0")") work=$(mktemp -d)
version=$("$choir" --version | sed 's/[^0-9]*\([0-9.]*\).*/\1/')
export OMP_NUM_THREADS=1
cd "$work"
tiny='"layers": 2, "d_model": 8, "d_hidden": 8, "heads": 2, "experts": 2'
train='{"sequence_length": 16, "batch_sequences": 2, "steps": 4, "rate": 0.02, "checkpoint_every": 4, "keep_checkpoints": 1,
  "eval_every": 4, "eval_sequences": 4}'
echo "{\"model\": {\"name\": \"golden\", $tiny}, \"train\": $train}" >config.json
"$choir" tokenizer train --vocab-size 288 --out t.model "$here/text.txt"
"$choir" data build --tokenizer t.model --separator %% --holdout 0.25 --out data "$here/text.txt"
"$choir" train --config config.json --data data --out run
"$choir" generate --prompt kalo --max-tokens 12 --temperature 0 run >generated 2>/dev/null
if "$choir" help export >/dev/null 2>&1; then
  echo "{\"model\": {\"name\": \"golden\", $tiny, \"position\": \"rope\", \"activation\": \"swiglu\",
    \"expert_activation\": \"swiglu\", \"router\": {\"score\": \"sigmoid\"}}, \"train\": $train}" >modern.json
  "$choir" train --config modern.json --data data --out modern
  "$choir" export --format hf --experts-per-token 2 --data data --json --out exported modern >exported.json
  rm -r modern
fi
rm -f run/lock run/data.path t.model
tar c --sort=name --owner=0 --group=0 --mtime=@0 . | gzip -9n >"$here/$version.tar.gz"
rm -r "$work"
