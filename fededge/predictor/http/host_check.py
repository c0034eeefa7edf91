"""Host names under which a local endpoint answers, as a defence against DNS rebinding.

A web page can make its own name resolve to 127.0.0.1 once it is loaded; its browser then treats a
local endpoint as the page's own server. The `Host` header of the request reveals the page's name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

__all__ = ["host_of", "is_known"]


def host_of(text: str) -> str:
    """The host in a `Host` or `Origin` header; empty if there is none, or more than a host."""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
    except ValueError:
        return ""
    more = parts.path or parts.query or parts.fragment or "@" in parts.netloc
    return "" if more else (parts.hostname or "").rstrip(".")


def is_known(host: str, here: str, names: Collection[str]) -> bool:
    """Return True if the host is this machine.

    Args:
        host: the host that the request names.
        here: the local address that received the request.
        names: further names, from the operator.
    """
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return True
    address = _address(host)
    return address is not None and (address.is_loopback or address == _address(here))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address without its interface; an IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
