"""A router of your own: each expert takes the tokens that are louder than `share` of its loudest one.

    choir route --plugin own_router.py --router louder --set router.share=0.7 scores.npy
    choir train --plugin own_router.py --set router.name=louder ...
    choir study run RECIPE --plugin own_router.py --data DIR --out DIR
"""

import choir
import numpy as np


@choir.experts_choose("louder", options={"share": (0.5, 0, 1, "of the loudest token")})
def louder(scores, valid, capacity, training, share):
    """experts take the tokens that are louder than a share of their loudest one"""
    heard = np.where(valid[:, None], scores, 0)
    best = np.argsort(-heard, axis=0, kind="stable")[:capacity]  # [capacity,e] of equal ones the earlier
    chosen = np.zeros_like(scores, dtype=bool)
    np.put_along_axis(chosen, best, True, axis=0)
    return chosen & (heard > share * heard.max(axis=0))
