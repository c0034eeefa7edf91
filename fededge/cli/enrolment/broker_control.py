"""Tells a running Mosquitto to shut a user out or to let it in again, and waits for its word."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial

import msgspec

from fededge.broker.dynamic_security import ANSWER, CONTROL, complaints, new_password
from fededge.config import BrokerConfig
from fededge.errors import FedEdgeError
from fededge.transport.probing import GRANTED, Probing

__all__ = ["tell_broker", "tell_password"]

PATIENCE = 5.0
"""Seconds to wait for the broker's word."""


def tell_broker(broker: BrokerConfig, message: Callable[[str], bytes]) -> str:
    """Have the broker's plugin do this; empty once it has, else why it has not.

    `message` makes the message with a token, by which we know the answer.
    """
    token = uuid.uuid4().hex
    try:
        with Probing(broker, PATIENCE) as line:
            if not line.connected:
                return "the broker does not take us in"
            line.subscribe([ANSWER])
            if line.publish(CONTROL, message(token)) >= GRANTED:
                return "the broker's access list does not let the coordinator shut anybody out"
            return _await_answer(line, token)
    except (OSError, FedEdgeError) as error:
        return f"the broker cannot be reached ({error})"


def tell_password(broker: BrokerConfig, user: str, password: str) -> str:
    """Have the broker take a user's new password, as `tell_broker`.

    It cuts the user's connections, and with our own the answer: then a login has to show it.
    """
    problem = tell_broker(broker, partial(new_password, user, password))
    if not problem or user != broker.username:
        return problem
    with Probing(msgspec.structs.replace(broker, password=password), PATIENCE) as line:
        return "" if line.connected else problem


def _await_answer(line: Probing, token: str) -> str:
    def answers() -> list[list[str]]:
        found = (complaints(each.payload, token) for each in line.heard if each.topic == ANSWER)
        return [each for each in found if each is not None]

    line.listen(PATIENCE, lambda: bool(answers()))
    heard = answers()
    if not heard:
        return "the broker does not answer: it has no dynamic security plugin"
    return "; ".join(heard[0])
