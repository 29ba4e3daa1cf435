"""Writes byte_level.json: small tokenizers of every family, trained by Hugging Face's tokenizers (0.23.3), texts, and
the ids that tokenizers gives. Run from tests/vectors: PYTHONPATH=../../python/tests python3 make_byte_level.py"""

import json

import byte_level

texts = [line.replace("\0", "") for line in byte_level.odd_lines(400)]
made = {}
for family in byte_level.FAMILIES:
    tokenizer = byte_level.train(family, texts, 400)
    shown = ["", " ", *texts[:40]]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in shown]
    made[family] = {"file": json.loads(tokenizer.to_str()), "texts": shown, "ids": ids}
with open("byte_level.json", "w", encoding="utf-8") as out:
    json.dump(made, out, ensure_ascii=False, separators=(",", ":"))
