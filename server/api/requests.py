"""Requests on their way from the API's thread to the coordinator's loop, which answers them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fededge.errors import FedEdgeError
from fededge_server.executor import GiveOrder
from fededge_server.parts import CoordinatorParts

__all__ = ["OrderRequest", "ReadRequest", "answer"]

log = logging.getLogger("coordinator")

Reply = Callable[[Any], None]
"""Takes the answer, or the error, to the thread that waits for it."""


@dataclass(frozen=True)
class ReadRequest:
    """A question about the coordinator: `read` runs in its loop, and changes nothing."""

    read: Callable[[CoordinatorParts], Any]
    reply: Reply


@dataclass(frozen=True)
class OrderRequest:
    """An order of the operator's."""

    order: Any
    reply: Reply


def answer(
    request: ReadRequest | OrderRequest, parts: CoordinatorParts, do: Callable[[GiveOrder], None]
) -> None:
    """Answer a request; an order once it is durable and has taken effect.

    `do` carries a command out, with all that comes of it.
    """
    if isinstance(request, ReadRequest):
        request.reply(_read(request, parts))
        return
    answers: list[Any] = []
    do(GiveOrder(request.order, answers.append))
    request.reply(answers[0] if answers else RuntimeError("the order was not carried out"))


def _read(request: ReadRequest, parts: CoordinatorParts) -> Any:
    """The answer to a question. No question ends the coordinator, whatever it meets."""
    try:
        return request.read(parts)
    except FedEdgeError as error:
        return error
    except Exception as error:
        log.exception("a question cannot be answered")
        return error
