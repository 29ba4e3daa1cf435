"""Studies: many runs of the program `choir` that answer one question (docs/studies.md).

`choir study ...` hands over to this package. It needs NumPy, SciPy, statsmodels, matplotlib and jsonschema, and reads
nothing but ordinary run directories and the store of results.
"""


class StudyError(Exception):
    """What a study refuses or could not do; the message says where, what, and what to do."""


class Stopped(Exception):
    """The user asked to stop; what ran has been saved."""
