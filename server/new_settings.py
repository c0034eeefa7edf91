"""Settings that were ordered come into force: in the journal, then in every part that goes by them.

The parts are made of the settings in force here, at a start and afterwards.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from fededge import methods
from fededge.config import check_run
from fededge.errors import RefusedError
from fededge.methods import Hyper
from fededge_server.machine.facts import RunFacts
from fededge_server.machine.rounds import rollout
from fededge_server.machine.rounds.new_settings import SettingsChanged
from fededge_server.machine.rounds.rollout import Plan, Staging
from fededge_server.machine.settings import Settings, told
from fededge_server.model.merging import Merging
from fededge_server.model.versions import Versions
from fededge_server.store import Role

if TYPE_CHECKING:
    from fededge_server.parts import CoordinatorParts

__all__ = ["check_ordered", "merging_of", "run_facts", "staging_of", "take_effect"]

log = logging.getLogger("coordinator")


def run_facts(versions: Versions) -> RunFacts:
    """The facts that the rounds go by."""
    config = versions.config
    return RunFacts(
        run=versions.run,
        seed=config.seed,
        layout=versions.layout.hash,
        scalars=versions.method.scalars,
        chunk_bytes=config.transfer.chunk_bytes,
        payload_limit=versions.update_limit,
        norm_factor=config.robust.norm_factor,
    )


def merging_of(versions: Versions) -> Merging:
    config = versions.config
    hyper = Hyper(**msgspec.structs.asdict(config.training))
    method, encoding = versions.method, versions.encoding
    rules = (config.rounds, config.robust, hyper)
    return Merging(versions.store, versions.layout, method, encoding, *rules)


def staging_of(versions: Versions) -> Staging | None:
    """The rollout as the journal has it; None if models reach all devices at once."""
    if versions.config.rollout is None:
        return None
    store, done = versions.store, versions.progress.rounds_done
    plan = store.plan() or Plan.initial(done)
    return Staging(versions.config.rollout, versions.run, plan, {*store.recall().known}, done)


def check_ordered(parts: CoordinatorParts, settings: Settings) -> None:
    """Refuse settings that could not come into force in this process.

    Raises:
        FedEdgeError: with a sentence that says why.
    """
    check_run(settings.put_into(parts.config))
    method = methods.method(settings.method)
    if method.files != settings.files:
        raise RefusedError(
            "the coordinator has imported another version of a method's file than the one that is "
            "there now: give the changed file another name, and apply that"
        )
    method.initial(parts.versions.layout)


def take_effect(parts: CoordinatorParts) -> list[SettingsChanged | rollout.RoundsDone]:
    """Put the ordered settings in force; a crash in between leaves all of it or nothing.

    Raises:
        DiskFullError: nothing has changed.
    """
    versions = parts.versions
    ordered, own = parts.store.settings().get(Role.ORDERED), False
    if ordered is not None:
        what = told(versions.settings, ordered)
        own = versions.take_effect(ordered)
        log.info("settings from version %s on: %s", versions.progress.version, what)
        _pass_on(parts)
    version = versions.progress.version if own else ""
    facts, rounds = run_facts(versions), versions.config.rounds
    changed = SettingsChanged(facts, rounds, parts.staging, version)
    done = [rollout.RoundsDone(versions.progress.rounds_done)] if own else []
    return [changed, *done]


def _pass_on(parts: CoordinatorParts) -> None:
    """Give the settings in force to every part beside the rounds, which hear of them by event."""
    versions, config = parts.versions, parts.versions.config
    parts.config = parts.message.config = config
    parts.merging = merging_of(versions)
    parts.judge.roll_back = config.robust.roll_back
    parts.judge.health.max_drop = config.robust.max_drop
    publisher = parts.publisher
    publisher.most_chunks = max(publisher.most_chunks, versions.most_chunks)
    if parts.staging is None or config.rollout is None:
        parts.staging = staging_of(versions)
    else:
        parts.staging.config = config.rollout
    parts.message.staging = parts.staging
