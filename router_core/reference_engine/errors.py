"""Errors of a request: the wire turns each into its own JSON.

RequestError
├── InvalidFieldError    one field has a wrong value, and is named
│   └── WrongTypeError   ... a wrong type
└── UnknownModelError    another model is asked for
"""


class RequestError(Exception):
    """The request cannot be served; the client is told why with ``status``."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.field: str | None = None


class InvalidFieldError(RequestError):
    """A field has a wrong value."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class WrongTypeError(InvalidFieldError):
    """A field has a wrong type; SGLang tells this in another shape than a wrong value."""


class UnknownModelError(RequestError):
    """The request names a model that is not served."""

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"The model `{name}` does not exist. Valid aliases: {served}.", 404)
        self.field = "model"
