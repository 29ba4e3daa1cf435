"""A choir model for lm-evaluation-harness (pip install lm-eval): log-likelihoods and texts, routed causally.

python3 examples/lm_eval_choir.py CHECKPOINT TASK...              # tasks that come with it
python3 examples/lm_eval_choir.py CHECKPOINT DIRECTORY TASK...    # and those described in DIRECTORY/*.yaml
"""

import os
import sys

import choir
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.tasks import TaskManager


@register_model("choir")
class Choir(LM):
    def __init__(self, checkpoint: str, batch_size: int = 16, threads: int = 0, **_):
        super().__init__()
        self.model, self.batch = choir.Model.load(checkpoint, threads=int(threads)), int(batch_size)
        self.model.routing = "threshold"  # a score may not depend on the other requests

    def loglikelihood(self, requests, **_):
        scored = self.model.score([request.args for request in requests], batch=self.batch)
        return [(one.log_likelihood, one.greedy) for one in scored]

    def loglikelihood_rolling(self, requests, **_):
        return [
            one.log_likelihood
            for one in self.model.score([("", request.args[0]) for request in requests], batch=self.batch)
        ]

    def generate_until(self, requests, **_):
        texts = []
        for request in requests:  # each has its own stop texts
            prompt, how = request.args
            stops = how.get("until") or []
            (text,) = self.model.generate(
                prompt,
                max_tokens=how.get("max_gen_toks", 256),
                temperature=how.get("temperature", 0) if how.get("do_sample") else 0,
                stops=[stops] if isinstance(stops, str) else stops,
            )
            texts.append(text.text)
        return texts


if __name__ == "__main__":
    checkpoint, *words = sys.argv[1:]
    own = [word for word in words if os.path.isdir(word)]
    found = simple_evaluate(
        model="choir",
        model_args=f"checkpoint={checkpoint}",
        tasks=[word for word in words if word not in own],
        task_manager=TaskManager(include_path=own or None),
    )
    for task, results in found["results"].items():
        print(task, {name: value for name, value in results.items() if isinstance(value, float)})
