"""The names under which a local endpoint answers: a web page must not reach it by its own.

A page can have its own name resolved to 127.0.0.1 once it is loaded (DNS rebinding), and its
browser then takes what answers there for the page's own server. The request tells: it names a host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

__all__ = ["host_of", "is_known"]


def host_of(text: str) -> str:
    """The host in a `Host` or `Origin` header; empty if there is more to it, or none."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
    except ValueError:
        return ""
    more = parts.path or parts.query or parts.fragment or "@" in parts.netloc
    return "" if more else (parts.hostname or "").rstrip(".")


def is_known(host: str, here: str, names: Collection[str]) -> bool:
    """Whether this machine is meant.

    Args:
        host: what the request names.
        here: the address that it came to.
        names: further names that the operator has given.
    """
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return True
    address = _address(host)
    return address is not None and (address.is_loopback or address == _address(here))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, without the interface it is on; an IPv4 one also if it came by way of IPv6."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
