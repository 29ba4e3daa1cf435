#!/usr/bin/env python3
"""SentencePiece models as others train them, and what SentencePiece itself makes of a line: tests/data/test_tokenizer.c.

Made by sentencepiece 0.2.3 of PyPI from LICENSE: python3 tests/vectors/make_foreign.py. It prints the rows of the table.
"""

import pathlib

import sentencepiece

here = pathlib.Path(__file__).resolve().parent
kept = dict(byte_fallback=True, normalization_rule_name="identity")
llama = dict(
    kept, model_type="bpe", remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True
)
models = {
    "unigram": dict(kept),
    "char": dict(kept, model_type="char"),
    "llama": dict(llama),
    "gemma": dict(
        llama,
        add_dummy_prefix=False,
        user_defined_symbols=["\n", "\n\n", "  ", "<mask>"],
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
    ),
}
line = "The licensed work of 2004 (a kath\u00e9dra)."
(here / "foreign").mkdir(exist_ok=True)
for name, options in models.items():
    prefix = here / "foreign" / name
    sentencepiece.SentencePieceTrainer.train(
        input=str(here.parents[1] / "LICENSE"),
        vocab_size=340,
        hard_vocab_limit=False,
        minloglevel=2,
        model_prefix=str(prefix),
        **options,
    )
    prefix.with_suffix(".vocab").unlink()
    ids = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model").encode(line)
    print(f'{{"{name}", {len(ids)}, {{{", ".join(map(str, ids))}}}}},')
