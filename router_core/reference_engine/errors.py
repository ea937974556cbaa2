"""Errors of a request: the wire turns each into its own JSON.

RequestError
└── InvalidFieldError    one field is wrong, and is named
"""


class RequestError(Exception):
    """The request cannot be served; the client is told why with ``status``."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class InvalidFieldError(RequestError):
    """A field has a wrong type or value."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
