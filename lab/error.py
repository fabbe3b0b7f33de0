"""The exceptions a user sees: a line that says what is wrong and what to do."""


class LabError(Exception):
    """Shown as one line on stderr; the command ends with its status."""

    status = 1


class GoneError(LabError):
    """Debian does not serve what it takes."""

    status = 3
