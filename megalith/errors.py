"""The one kind of error that a user can cause."""


class MegalithError(Exception):
    """A mistake in settings, files or surroundings, told so that the reader can mend it.

    The message says what was wrong (flag, file, value), why it matters and what to do. It is
    shown once, without a traceback.
    """
