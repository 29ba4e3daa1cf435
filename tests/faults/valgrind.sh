#!/bin/sh
# valgrind.sh CHOIR: every verb once under valgrind's memcheck, on small inputs. Fails where it finds a use of memory
# that is not there or not set, or memory that is definitely lost. Needs valgrind; takes half an hour beside other work.
set -eu
choir=$1
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
# valgrind knows AVX2 and no AVX-512. OpenMP's threads live until the end.
export CHOIR_ISA=avx2 GOMP_SPINCOUNT=1000
verbs=0
run() {
  verbs=$((verbs + 1))
  valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    --log-file=log "$choir" "$@" >out 2>err || { status=$?; echo "choir $*: status $status"; cat err log; exit 1; }
}

for i in 1 2 3 4 5 6 7 8 9 10; do echo "kalo revo ten vo pel dor ni sur miten vosu $i na ka lo"; done >corpus.txt
for i in 1 2 3 4 5; do cat corpus.txt corpus.txt >more && mv more corpus.txt; done
run tokenizer train --threads 1 --vocab-size 285 --out tok corpus.txt
run tokenizer encode --tokenizer tok corpus.txt
head -c 3000 out >ids
run tokenizer decode --tokenizer tok ids
run data build --tokenizer tok --holdout 0.1 --out data corpus.txt
run data info data
cat >config.json <<'END'
{"model": {"layers": 2, "d_model": 16, "d_hidden": 16, "heads": 2, "experts": 2},
 "train": {"sequence_length": 16, "batch_sequences": 2, "steps": 4, "checkpoint_every": 2, "eval_every": 2, "eval_sequences": 2}}
END
run info config.json
cat >cluster.json <<'END'
{"name": "two", "ranks": 2, "fp32_gflops": 1, "memory_gib": 1, "memory_gbs": 1,
 "levels": [{"name": "net", "ranks": 2, "bandwidth_gbs": 1, "latency_us": 1}]}
END
run plan config.json --cluster cluster.json --out plan.html
run init config.json --tokenizer tok --out fresh
run help routers
for router in $(sed -n '/^Options/q; s/^  \([a-z][a-z0-9_]*\) .*/\1/p' out); do
  experts=2
  [ "$router" != dense ] || experts=1
  run train --config config.json --data data --out "run-$router" --set router.name="$router" --set experts=$experts
done
mv run-expert_choice run
run train --resume --out run --set steps=6
run train --config config.json --data data --out run-16 --set compute=bf16 --emulate-bf16
run eval run --data data
run generate run --prompt ka --max-tokens 5
printf '{"context": "ka", "continuation": " lo"}\n' >requests
run score run --requests requests
printf 'text\tlabel\nku\tgood\nle\tbad\nmi\tgood\nno\tbad\n' >rows.tsv
cat >mine.json <<'END'
{"name": "mine", "format": "tsv", "splits": {"train": ["rows.tsv"], "dev": ["rows.tsv"]}, "columns": {"text": ["text"]},
 "label": ["label"], "labels": [{"word": " a", "values": ["bad"]}, {"word": " e", "values": ["good"]}],
 "template": "{text}:", "cut": "text"}
END
run finetune --init-from run --task mine.json --data . --set batch_sequences=2 --set steps=2 --out tuned
run score tuned --task mine.json --data . --out predictions.tsv
python3 - <<'END'
import struct
def save(path, descr, shape, format, values):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, shape)
    head += " " * (63 - (len(head) + 10) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(format, *values))
save("scores.npy", "<f4", (6, 4), "<24f", [(i * 7 % 24) / 24 for i in range(24)])
save("tokens.npy", "<i4", (2, 8), "<16i", [i % 9 + 2 for i in range(16)])
END
run forward run tokens.npy --logits logits.npy --gradients gradients.safetensors
run route scores.npy --router expert_choice
run probe run --draws 1 --positions 1
run report run
run stats run --text corpus.txt
run inspect run --text corpus.txt --out page.html
run bench --repetitions 1 --seconds 0.001 rmsnorm n=8 d=16
run study list
echo "$verbs commands under valgrind: no error, nothing lost"
