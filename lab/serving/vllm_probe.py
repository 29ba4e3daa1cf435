"""vllm_probe.py FOLDER logits|greedy|tokens [N]: prints what vLLM computes with a model folder, in the format of llama.c.

vLLM returns log-probabilities and llama.cpp logits, which differ by a constant at each position.
"""

import os
import sys

import numpy as np

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams  # noqa: E402

out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # vLLM's own lines go to standard error
folder, what, *count = sys.argv[1:]
text = sys.stdin.buffer.read().decode()
llm = LLM(model=folder, dtype="float32", enforce_eager=True, max_logprobs=-1, disable_log_stats=True)


def line(ids):
    return (" ".join(map(str, ids)) + "\n").encode()


if what == "tokens":
    tokenizer = llm.get_tokenizer()
    out.writelines(line(tokenizer.encode(part)) for part in text.split("\0")[:-1])
    sys.exit(0)
prompts = [{"prompt_token_ids": list(map(int, row.split()))} for row in text.splitlines()]
if what == "greedy":
    for o in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=int(count[0]), ignore_eos=True)):
        out.write(line(o.outputs[0].token_ids))
else:
    # The first generated token is drawn from the last position's logits.
    for o in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, logprobs=-1, prompt_logprobs=-1)):
        for at in [*o.prompt_logprobs[1:], o.outputs[0].logprobs[0]]:
            out.write(np.array([at[token].logprob for token in range(len(at))], np.float32).tobytes())
