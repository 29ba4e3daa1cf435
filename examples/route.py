"""Routers on the same scores: how many experts the tokens get, and how much of the best score is kept.

python3 examples/route.py [scores.npy]
"""

import sys

import numpy as np

import choir

scores = np.load(sys.argv[1]) if len(sys.argv) > 1 else np.random.default_rng(1).standard_normal((512, 16))
for router, options in (
    ("expert_choice", {}),
    ("capped_expert_choice", {"cap": 3}),
    ("switch_top1", {}),
    ("gshard_top2", {}),
    ("base", {}),
):
    chosen = choir.route(scores, router, logits=True, training=True, **options)
    certificate = f", gap {chosen.certificate.gap:.1e}" if chosen.certificate else ""
    print(
        f"{router:22} load {chosen.load.min()}-{chosen.load.max()}, dropped {chosen.dropped}, "
        f"tokens by experts {chosen.histogram[:6].tolist()}, gates {chosen.gates.sum():.1f}{certificate}"
    )
