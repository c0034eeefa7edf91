"""The broker's password: from the environment, or from its file, which may hold two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from fededge.config.sections import PASSWORD_VARIABLE, BrokerConfig
from fededge.errors import ConfigError
from fededge.storage.files import check_private, read_file

__all__ = ["with_password"]

PASSWORDS = 2
"""Lines of a password file, at most: the new password and the one before it."""


def with_password(broker: BrokerConfig, environment: Mapping[str, str]) -> BrokerConfig:
    """The broker's section with the password from the environment or from its file."""
    if PASSWORD_VARIABLE in environment:
        return msgspec.structs.replace(broker, password=environment[PASSWORD_VARIABLE])
    if not broker.password_file:
        return broker
    if broker.password:
        raise ConfigError("broker.password and broker.password_file are both set; leave one out")
    path = Path(broker.password_file)
    data = read_file("broker.password_file", path)
    check_private("broker.password_file", path)
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        lines = []
    if not 1 <= len(lines) <= PASSWORDS or not all(lines):
        raise ConfigError(
            f"broker.password_file: '{path}' must hold one line, the password; during a rotation "
            "two, the new one first"
        )
    return msgspec.structs.replace(broker, password="\n".join(lines))
