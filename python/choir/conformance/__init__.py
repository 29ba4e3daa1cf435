"""Compares a router of your own with published ones: which convention does it follow, and where does it differ?

    python -m choir.conformance FILE.py:function

    from choir.conformance import check
    report = check(my_router)      # f(scores [n,e], k, valid [n]) -> (chosen, gates) or (chosen, gates, loss)
    print(report)
    assert report.convention == "mixtral"

Requires NumPy, and PyTorch for functions that use it. docs/conformance.md lists the conventions and the faults.
"""

from .report import Report, check

__all__ = ["Report", "check"]
