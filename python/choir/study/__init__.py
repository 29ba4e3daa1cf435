"""Studies: many runs of the program `choir` that answer one question (docs/studies.md).

`choir study ...` runs this package. It requires NumPy, SciPy, statsmodels, matplotlib and jsonschema, and reads
only ordinary run directories and the store of results.
"""


class StudyError(Exception):
    """A study refused or could not do something. The message says where, what, and what to do."""


class Stopped(Exception):
    """The user stopped the study; the runs in progress have been saved."""
