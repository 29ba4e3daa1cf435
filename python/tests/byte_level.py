"""Byte-level BPE as families of models have it, trained with Hugging Face's tokenizers: for test_import.py."""

import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LATER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^EOL\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[EOL]*|\s*[EOL]+|\s+(?!\S)|\s+"""
).replace("EOL", "\r\n")
SPACES = [" " * n for n in range(24, 1, -1)]
LLAMA = CONTRACTIONS + r"\p{N}{1,3}" + LATER
# Name: patterns (none: that of ByteLevel), NFC, ignore_merges, tokens that end texts, and others.
FAMILIES = {
    "gpt2": ((), False, False, ["<|endoftext|>"], []),
    "olmoe": ((), True, False, ["<|endoftext|>", "<|padding|>"], [*SPACES, "|||IP|||"]),
    "qwen": (
        (CONTRACTIONS + r"\p{N}" + LATER,),
        True,
        False,
        ["<|endoftext|>", "<|im_end|>"],
        ["<think>", "</think>"],
    ),
    "llama3": ((LLAMA,), False, True, ["<|begin_of_text|>", "<|end_of_text|>"], []),
    "glm4": ((LLAMA,), False, False, ["<|endoftext|>", "[gMASK]"], ["/nothink"]),
    "deepseek": ((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK), False, False, ["<｜end▁of▁sentence｜>"], []),
}


def train(family: str, texts, vocab_size: int) -> Tokenizer:
    """What tokenizers makes of the texts; "added" tokens of OLMoE are found after normalization, as there."""
    patterns, nfc, ignore, special, added = FAMILIES[family]
    made = Tokenizer(models.BPE(ignore_merges=ignore))
    made.normalizer = normalizers.NFC() if nfc else None
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last]) if cuts else last
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(special)
    made.add_tokens([AddedToken(text, normalized=True) for text in added])
    return made


def characters(low: int, high: int) -> list:
    """Lines that have every character of a range, as of Unicode 3.2, which all libraries know: by itself, in a word,
    and after another."""
    lines, old = [], unicodedata.ucd_3_2_0
    for first in range(low, high, 32):
        some = [chr(c) for c in range(first, min(first + 32, high)) if old.category(chr(c)) not in ("Cn", "Cs")]
        if some:
            lines.append(" ".join(some) + " " + "".join(f"a{c}b1{c}" for c in some) + "".join(some))
    return lines


def odd_lines(count: int) -> list:
    """Contractions, digits, runs of white space, marks, emoji with joiners, CJK, and pieces of added tokens, mixed."""
    draw = random.Random(5)
    parts = (
        "I'm you'll HE'S we'VE don't 'tis 'ſ 'S x's'd 12345 3.14 ²³½ ٣٤٥ Ⅻ 一二三 你好,世界。 ひらがなカタカナ 한국어 각 ᄀ\u1161\u11a8 "
        "e\u0301\u0327 q\u0323\u0307 \u0301\u0301 क्षि ไทย مُحَمَّد שָׁלוֹם 👩‍🔬 👨‍👩‍👧‍👦 🇩🇪 ❤️ <|endoftext|> <|end <think> |||IP||| "
        "[gMASK] <｜end▁of▁sentence｜> \u2581 \ufeff \u200b \x00 \x1b[0m \x7f \x85 \u180e \u2028 \ufffd \U0010fffd ... !? --- #$% "
        "_snake_case CamelCase http://a.b/c?d=e&f a.B(c) «quote» “curly” it’s"
    ).split(" ")
    gaps = " | | |  |     |\n|\r\n|\n\n| \n |\t|\t\t|\u00a0|\u3000| \u2003||".split("|")
    return [
        "".join(draw.choice(parts) + draw.choice(gaps) for _ in range(draw.randint(1, 12))) for _ in range(count)
    ]
