"""The exception of an export that was refused."""


class NotExportable(Exception):
    """A model that cannot be exported; the message says what stands in the way, where, and what to do."""
