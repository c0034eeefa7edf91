"""Stateless checks of a device's report: does it belong to this run, and is it valid?"""

from __future__ import annotations

import math

from fededge.errors import WireError
from fededge.wire.chunks import check_manifest
from fededge.wire.messages import Report
from fededge_server.machine.facts import RunFacts

__all__ = ["flaw", "foreign"]


def foreign(facts: RunFacts, device: str, report: Report) -> str:
    """The reason why a report does not belong to this run; empty if it does."""
    if report.device != device:
        return f"the report names device '{report.device}', its topic '{device}'"
    if report.run != facts.run:
        return "the update is of another run of this federation"
    if report.layout != facts.layout:
        return f"the update's layout is {report.layout}, ours is {facts.layout}"
    return ""


def flaw(facts: RunFacts, report: Report, announced: int) -> str:
    """A sentence on what is wrong with the content of a report; empty if nothing is.

    Args:
        announced: the examples that the device said it has when it was asked.
    """
    manifest, scalars = report.manifest, report.scalars
    if manifest.chunk_bytes != facts.chunk_bytes:
        return f"chunks of {manifest.chunk_bytes} bytes, the federation's are {facts.chunk_bytes}"
    try:
        check_manifest(manifest, facts.payload_limit)
    except WireError as error:
        return str(error)
    odd = sorted(scalars.keys() - facts.scalars)[:3]  # a reason must fit into a reply
    if odd or "examples" not in scalars:
        return f"the scalars are not those of the method: {', '.join(odd) or 'no examples'}"
    if not all(map(math.isfinite, scalars.values())):
        return "a scalar is not finite"
    if not 0 <= scalars["examples"] <= announced:
        return f"it claims {scalars['examples']:.15g} examples, the device announced {announced}"
    return ""
