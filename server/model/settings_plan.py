"""A change of settings before it is ordered: every key with what the change means, or why not."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from fededge import methods
from fededge.config import CoordinatorConfig
from fededge.errors import RefusedError, StoreError
from fededge.method.stack import Stack
from fededge_server.machine.settings import Settings, keys_of, word
from fededge_server.model.kept_network import kept_network
from fededge_server.model.network import Network
from fededge_server.model.run_settings import settings_of
from fededge_server.model.versions import run_identity
from fededge_server.store import Role, Store

__all__ = ["Difference", "SettingsPlan", "plan_of"]

NEW_RUN = (
    "begin a new run: another state folder; with `fededge versions export --weights` and "
    "`[model] weights` it starts from a version of this one"
)

FIXED = {
    "federation": "agents, topics and access lists go by it: begin a new federation",
    "seed": f"the devices' batches and the selection follow from it: {NEW_RUN}",
    "model": f"updates of another network cannot be summed with ours: {NEW_RUN}",
    "labels": f"a class more or less changes the network's last layer: {NEW_RUN}",
    "layout": f"updates of another network cannot be summed with ours: {NEW_RUN}",
}
"""Why a fact of a run cannot change, and what to do instead."""

MEANINGS = {
    "training.": "the devices train so from the next version on",
    "transfer.encoding": "the devices send updates so from the next version on",
    "transfer.chunk_bytes": "models and updates travel so from the next version on",
    "files": "the code of the method's file",
    "rounds.count": "the run ends, or goes on, by it",
    "rounds.": "from the next round on",
    "robust.max_drop": "versions are judged so from the next round on",
    "robust.roll_back": "versions are judged so from the next round on",
    "robust.": "updates are checked and merged so from the next round on",
    "rollout": "new personal models reach the devices so from the next round on",
    "keep_versions": "older model files are removed when the next version is made",
}
"""The meaning of a change, by how its key begins; the first that fits counts."""


class Difference(Struct, frozen=True):
    """A key that differs, its old and its new value, and the meaning of the change."""

    key: str
    old: str
    new: str
    meaning: str


class SettingsPlan(Struct, frozen=True):
    """A change: what differs from the settings in force or ordered, and the wanted settings.

    `begun`: it makes a version of its own, because devices train by other terms.
    """

    differences: list[Difference]
    wanted: Settings
    begun: bool


def plan_of(config: CoordinatorConfig) -> SettingsPlan:
    """The change from a run's settings to those of a configuration.

    Raises:
        RefusedError: a key differs that cannot change, with the reason and what to do instead.
        FedEdgeError: the configuration's network cannot be built, or trained by its method.
    """
    store = Store(Path(config.state))
    if not store.path.exists():
        raise StoreError(
            f"'{config.state}' holds no journal: the coordinator has not run here yet; a run keeps "
            "its state folder, so `state` must name it"
        )
    found = store.settings()
    if Role.IN_FORCE not in found:
        raise StoreError(
            f"{store.path}: an earlier version of FedEdge began this run; start the coordinator "
            "once, which takes its settings up"
        )
    _check_fixed(store, config)
    before, wanted = found.get(Role.ORDERED, found[Role.IN_FORCE]), settings_of(config)
    old, new = keys_of(before), keys_of(wanted)
    differences = [
        Difference(key, word(old[key]), word(new[key]), _meaning(key, before, wanted))
        for key in new
        if new[key] != old[key]
    ]
    return SettingsPlan(differences, wanted, before.job != wanted.job)


def _check_fixed(store: Store, config: CoordinatorConfig) -> None:
    network = Network(config.model, config.data, config.method, config.seed, config.hardware)
    try:
        founded = kept_network(store.folder, network.wanted) or network.start()
    finally:
        network.stop()
    facts = run_identity(config, store.known_fact("run"), founded.spec, founded.layout)
    for name, now in facts.items():
        begun = store.known_fact(name)
        if begun != now:
            raise RefusedError(
                f"{name} cannot change in a run: it is {begun}, the file says {now}; {FIXED[name]}"
            )


def _meaning(key: str, before: Settings, wanted: Settings) -> str:
    if key == "method":
        return _of_method(before.method, wanted.method)
    return next(text for begin, text in MEANINGS.items() if key.startswith(begin))


def _of_method(before: str, wanted: str) -> str:
    """The meaning of another method: for its own state, here and on the devices."""
    old, new = methods.method(before), methods.method(wanted)
    text = "the devices train so from the next version on"
    if [layer.name for layer in old.layers] == [layer.name for layer in new.layers]:
        return f"{text}; the method's own state goes on"
    pieces = ", ".join(_pieces(new)) or "none"
    return (
        f"{text}; the method's own state begins anew, here and on the devices ({pieces}); what "
        "devices have learnt for themselves stays where the new method has it too"
    )


def _pieces(method: Stack) -> list[str]:
    """The state of a method that begins anew, by name: the coordinator's and the devices'."""
    kept = ((one.name, name, rule) for one in method.layers for name, rule in one.keeps.items())
    return [*method.sends, *(f"{layer}.{name}" for layer, name, rule in kept if rule == "update")]
