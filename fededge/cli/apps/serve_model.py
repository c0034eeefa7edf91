"""`fededge serve-model`: serve a device's model over local HTTP."""

from __future__ import annotations

import argparse

from fededge._internal import logs
from fededge.cli.apps.models import add_model_options, from_one, open_model
from fededge.cli.services import run_until_signal
from fededge.errors import ConfigError
from fededge.predictor.http.endpoint import MAX_BODY_BYTES, MAX_CONNECTIONS, Endpoint
from fededge.predictor.http.host_check import host_of

__all__ = ["add_to"]

TEXT = """\
Answer requests over HTTP, for apps in any language on this machine. The endpoint switches to
the agent's new models while it runs. There is no password and no encryption: leave it on
127.0.0.1.

examples:
  fededge serve-model state --port 8117
  curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8117/?top=3
"""

OPEN = "other machines can reach it without password or encryption: see --host"


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_model_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument(
        "--host-name",
        action="append",
        default=[],
        metavar="NAME",
        help="another name of this machine that requests may use; may be repeated",
    )
    parser.add_argument("--port", type=int, default=8117, help="default: 8117; 0: a free one")
    parser.add_argument(
        "--most-bytes",
        type=from_one,
        default=MAX_BODY_BYTES,
        help="largest request (default: 16 MiB)",
    )
    parser.add_argument(
        "--most-connections",
        type=from_one,
        default=MAX_CONNECTIONS,
        help=f"most connections; further ones get 503 (default: {MAX_CONNECTIONS})",
    )
    parser.add_argument("--verbose", action="store_true", help="log every request")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    predictor = open_model(options)
    limits = options.most_bytes, options.most_connections
    names = [*map(_checked, options.host_name)]
    endpoint = Endpoint(predictor, options.host, options.port, *limits, names)
    print(f"{endpoint.url} answers with version {predictor.version}", flush=True)
    print(predictor.about.provider, flush=True)
    if not endpoint.is_local:
        print(OPEN, flush=True)
    logs.set_up("debug" if options.verbose else "info")
    run_until_signal(endpoint)


def _checked(name: str) -> str:
    if host_of(name) != name.lower().rstrip(".") or not name:
        raise ConfigError(f"--host-name {name}: give a name without scheme, port or path")
    return name
