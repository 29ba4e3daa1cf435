"""What a study refuses or could not do; the message says where, what, and what to do."""


class StudyError(Exception):
    pass


class Stopped(Exception):
    """The user asked to stop; what ran has been saved."""
