"""The API's requests and answers over HTTP. This module alone imports aiohttp, and is lazy.

A request becomes an event of the coordinator's loop, and its answer comes back through a future. So
one thread owns the state, and a client that hangs costs a connection, never a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from fededge.errors import DiskFullError, FedEdgeError
from fededge_server.api import folder_views, views
from fededge_server.api.errors import BusyError, NotFoundError
from fededge_server.api.requests import OrderRequest, ReadRequest
from fededge_server.api.schema import OutcomeView
from fededge_server.machine.fleet.orders import read_order
from fededge_server.parts import CoordinatorParts
from fededge_server.store import Store

__all__ = ["serving"]

MOST_BYTES = 64 * 1024
"""Largest request."""

MOST_REQUESTS = 32
"""Requests that may wait for an answer at a time."""

BODY_PATIENCE = 5.0
"""Seconds that a client may take to send a request."""

CODES = {NotFoundError: 404, BusyError: 503, DiskFullError: 507}
"""Status codes of errors; any other that is an operator's is 409."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(
    listening: socket.socket, store: Store, inbox: queue.SimpleQueue[Any], patience: float
) -> AsyncIterator[None]:
    """Serve on this socket until the end of the block."""
    app = web.Application(client_max_size=MOST_BYTES, middlewares=[_errors_as_json])
    app.add_routes(Handlers(store, inbox, patience).routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=30.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield
    finally:
        await runner.cleanup()


class Handlers:
    """Answers requests from the coordinator's loop, or from the journal beside it."""

    def __init__(self, store: Store, inbox: queue.SimpleQueue[Any], patience: float) -> None:
        self.store = store
        self.inbox = inbox
        self.patience = patience
        self._waiting = 0

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self._read(views.status)),
            web.get("/devices", self._read(views.devices)),
            web.get("/devices/{device}", self._device),
            web.get("/versions", self._journal(folder_views.versions)),
            web.get("/history", self._journal(folder_views.history)),
            web.post("/orders", self._order),
        ]

    def _read(self, read: Callable[[CoordinatorParts], Any]) -> Handler:
        async def handle(_: web.Request) -> web.Response:
            return _json(await self._answer(lambda reply: ReadRequest(read, reply)))

        return handle

    def _journal(self, read: Callable[[Store], Any]) -> Handler:
        async def handle(_: web.Request) -> web.Response:
            return _json(await asyncio.to_thread(read, self.store))

        return handle

    async def _device(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["device"]
        return await self._read(lambda parts: views.device(parts, name))(request)

    async def _order(self, request: web.Request) -> web.Response:
        order = read_order(await asyncio.wait_for(request.read(), BODY_PATIENCE))
        outcome = await self._answer(lambda reply: OrderRequest(order, reply))
        return _json(OutcomeView(changed=outcome.changed, text=outcome.text))

    async def _answer(self, make: Callable[[Callable[[Any], None]], Any]) -> Any:
        """Put a request into the loop's inbox, and wait for its answer."""
        if self._waiting >= MOST_REQUESTS:
            raise BusyError(f"{MOST_REQUESTS} requests wait already; try again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def reply(answer: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the API has stopped
                loop.call_soon_threadsafe(_settle, future, answer)

        self._waiting += 1
        try:
            self.inbox.put(make(reply))
            return await asyncio.wait_for(future, self.patience)
        except asyncio.TimeoutError:
            raise BusyError(
                f"the coordinator has not answered within {self.patience:.0f} s: it may be busy, "
                "and an order may still be carried out; ask again"
            ) from None
        finally:
            self._waiting -= 1


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _json(value: Any, status: int = 200) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer an error with a JSON object of one sentence."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _json({"error": f"{error.reason}: {request.method} {request.path}"}, error.status)
    except asyncio.TimeoutError:
        return _json({"error": "the request did not come in time"}, 408)
    except FedEdgeError as error:
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), 409)
        return _json({"error": str(error)}, code)
