"""``/routed_experts/{rid}``: the rows of one answer as a ``.npy`` file."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from router_core import Reject
from router_routed_experts.store import Entry, RowStore


class ExpertRoutes:
    """The route over one store."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        return [Route("/routed_experts/{rid:path}", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """The rows of a rid; incomplete ones only with ``?partial=true``. Raises Reject: 404, 409 with the reasons."""
        rid = request.path_params["rid"]
        entry = self._store.get(rid)
        if entry is None:
            raise Reject(404, "unknown_rid", f"no routed experts are kept for {rid!r}", "rid")
        partial = request.query_params.get("partial", "false").lower()
        if partial not in ("true", "false", "1", "0"):
            raise Reject(400, "bad_value", f"?partial= must be true or false, not {partial!r}", "partial")
        if not entry.is_complete and partial in ("false", "0"):
            told = f"{entry.table.row_count} rows are kept, and they are not whole: {reasons_of(entry)}"
            raise Reject(409, "incomplete", told, "rid")
        headers = {
            "x-router-complete": "true" if entry.is_complete else "false",
            "x-router-first-row": str(entry.table.start),
            "content-length": str(entry.table.npy_size),
        }
        pieces = (bytes(piece) for piece in entry.table.npy_pieces())
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def reasons_of(entry: Entry) -> str:
    """What is wrong with an entry, for people."""
    return "; ".join(f"{found.reason} ({found.worker}): {found.detail}" for found in entry.complaints)
