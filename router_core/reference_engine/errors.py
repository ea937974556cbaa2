"""Errors of a request: the wire turns each into its own JSON.

RequestError
├── InvalidFieldError    one field has a wrong value, and is named
│   └── WrongTypeError   ... a wrong type
├── ContextTooLongError  the prompt, or it and the answer, are too long
└── UnknownModelError    another model is asked for
"""

from router_core.reference_engine.options import Dialect


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


class ContextTooLongError(RequestError):
    """The context has no room for the prompt and the answer; agents know the message by its words."""

    def __init__(self, prompt_tokens: int, wanted: int, limit: int, dialect: Dialect) -> None:
        total = prompt_tokens + wanted
        if dialect == "vllm":
            said = (
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt_tokens} "
                "input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt."
            )
        elif prompt_tokens >= limit:
            said = f"The input ({prompt_tokens} tokens) is longer than the model's context length ({limit} tokens)."
        else:
            said = (
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a "
                f"total of {total} tokens: {prompt_tokens} tokens from the input messages and {wanted} tokens for the "
                "completion. Please reduce the number of tokens in the input messages or the completion to fit within "
                "the limit."
            )
        super().__init__(said)
        self.field = "input_tokens"


class UnknownModelError(RequestError):
    """The request names a model that is not served."""

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"The model `{name}` does not exist. Valid aliases: {served}.", 404)
        self.field = "model"
