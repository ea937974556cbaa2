"""How each dialect tells a client that its request cannot be served."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from router_core.reference_engine.errors import RequestError, WrongTypeError
from router_core.reference_engine.http import json_response

_TYPES = {400: "BadRequestError", 404: "NotFoundError"}


async def sglang_error(request: Request, error: Exception) -> Response:
    """Return SGLang's JSON: wrong types and OpenAI's routes have one shape, its own routes another."""
    assert isinstance(error, RequestError)
    if isinstance(error, WrongTypeError):
        kind = "Bad Request"
    elif request.url.path.startswith("/v1/"):
        kind = _TYPES.get(error.status, "BadRequestError")
    else:
        return json_response({"error": {"message": error.message}}, error.status)
    told = {"object": "error", "message": error.message, "type": kind, "param": None, "code": error.status}
    return json_response(told, error.status)


async def vllm_error(request: Request, error: Exception) -> Response:
    """Return vLLM's JSON."""
    assert isinstance(error, RequestError)
    kind = "Bad Request" if isinstance(error, WrongTypeError) else _TYPES.get(error.status, "BadRequestError")
    told = {"message": error.message, "type": kind, "param": error.field, "code": error.status}
    return json_response({"error": told}, error.status)


async def http_error(request: Request, error: Exception) -> Response:
    """Return FastAPI's JSON for an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    return json_response({"detail": error.detail}, error.status_code)


async def client_left(request: Request, error: Exception) -> Response:
    """Return what nobody reads."""
    return Response(status_code=499)
