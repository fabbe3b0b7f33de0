"""The exception a user sees: a line that says what is wrong and what to do."""


class LabError(Exception):
    """Shown as one line on stderr; the command ends with status 1."""
