"""The exceptions of the package. Their messages are those that the command line prints."""


class WeftError(Exception):
    """An error of Weft, in one sentence.

    code: the exit code of the command, or None where no command ran.
    """

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code


class NotExportable(WeftError):
    """A model that cannot be exported; the message says what stands in the way, where, and what to do."""


class BadRun(WeftError):
    """A run file, data, weights or a flag that is wrong. Nothing was started."""


class RunFailed(WeftError):
    """A training that began and did not reach its end; its folder has what it left."""
