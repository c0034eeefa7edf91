"""Faults of the configuration, the box, its state, its data, and of the federation."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from fededge.cli import main
from fededge.cli.operation import doctor as command
from fededge.credentials.signing_keys import read_signing_key
from fededge.ops import _backend
from fededge.wire.messages import Manifest, Status, encode
from fededge.wire.signing import sign
from fededge.wire.topics import Topics
from fededge_agent.store import AgentStore
from fededge_agent.store.index import StoredFile
from fededge_server.store import Store
from fededge_server.store.store import Progress
from tests.doctor.site import INSTANCE, Patient, damaged, renamed, state
from tests.hardware.fakes import FakeTorch, jetson

__all__ = ["BOX_FAULTS", "CONFIGURATION_FAULTS"]

VERSION = "000000-0123456789abcdef"


# The configuration


def unknown_key(it: Patient) -> None:
    it.broker["hots"] = "x"


def readable_password(it: Patient) -> None:
    path = it.folder / "password"
    path.write_text("secret")
    path.chmod(0o644)
    it.broker["password_file"] = str(path)


def missing_data_folder(it: Patient) -> None:
    it.values["data"]["root"] = "dta"


def missing_ca(it: Patient) -> None:
    it.use_tls(ca="nowhere.crt")


def unusable_trusted_key(it: Patient) -> None:
    (it.folder / "signing.pub").write_text("no key")
    it.values["trusted_key"] = "signing.pub"


def mixed_up_key(it: Patient) -> None:
    it.use_certificate(it.site.pki, "gate-7")
    it.broker["key"] = str(it.site.pki / "gate-6.key")


# The installation


def package_missing(it: Patient) -> None:
    it.patch.setitem(sys.modules, "onnxruntime", None)


def kernels_missing(it: Patient) -> None:
    it.patch.setattr(_backend, "CHOICE", _backend.Choice("reference", "nothing was compiled"))


def hardware_missing(it: Patient) -> None:
    it.values["hardware"] = {"device": "cuda:7"}


def torch_for_the_cpu_on_a_jetson(it: Patient) -> None:
    it.patch.setattr(command, "PROBE", jetson(it.folder, FakeTorch()))


# The box and its state


def clock_behind_the_federation(it: Patient) -> None:
    it.box = renamed(it.box, wall=lambda: time.time() - 10_000)


def clock_behind_its_own_files(it: Patient) -> None:
    it.state.mkdir()
    (it.state / "ledger.old").write_text("")
    os.utime(it.state / "ledger.old", (time.time() + 10_000,) * 2)


def full_disk(it: Patient) -> None:
    it.box = renamed(it.box, free_bytes=lambda folder: 1 << 20)


def slow_disk(it: Patient) -> None:
    moments = itertools.count(0.0, 1.5)
    it.box = renamed(it.box, clock=lambda: next(moments))


def state_below_a_file(it: Patient) -> None:
    (it.folder / "file").write_text("")
    it.values["state"] = "file/state"


def begun(it: Patient) -> AgentStore:
    """The folder of an agent that has run before."""
    store = AgentStore(it.state)
    store.open()
    store.close()
    return store


def files_of_another_user(it: Patient) -> None:
    begun(it)
    os.chown(it.state / "private" / "agent.json", 4711, 4711)


def open_private_state(it: Patient) -> None:
    begun(it)
    (it.state / "private").chmod(0o755)


def damaged_index(it: Patient) -> None:
    begun(it)
    damaged(it.state / "private" / "agent.json")


def damaged_indices(it: Patient) -> None:
    damaged_index(it)
    damaged(it.state / "private" / "agent.before.json")


def damaged_private_state(it: Patient) -> None:
    begun(it)._index.change(private=StoredFile("1.private", 64 * "0"))


def damaged_ledger(it: Patient) -> None:
    it.state.mkdir()
    (it.state / "ledger.json").write_text("{}")


def journal(it: Patient) -> Store:
    """The journal of a coordinator that has published its first version."""
    it.become_coordinator()
    store = Store(it.state)
    store.open()
    store.enter(Progress(0, VERSION, 64 * "a", None), 64 * "b", {}, None)
    store.model(VERSION).write_bytes(b"")
    store.close()
    return store


def damaged_journal(it: Patient) -> None:
    path = journal(it).path
    path.write_bytes(path.read_bytes().replace(VERSION.encode(), VERSION[::-1].encode()))


def lost_journal(it: Patient) -> None:
    journal(it).path.unlink()


def lost_mark(it: Patient) -> None:
    journal(it).marks[0].unlink()


def lost_model(it: Patient) -> None:
    journal(it).model(VERSION).unlink()


# The data


def no_data_section(it: Patient) -> None:
    del it.values["data"]


def empty_folder(it: Patient) -> None:
    (it.folder / "empty").mkdir()
    it.values["data"]["root"] = "empty"


def damaged_array(it: Patient) -> None:
    np.savez(it.folder / "data.npz", x=np.zeros((20, 1, 28, 28), np.uint8))
    it.values["data"] = {"source": "npz", "root": "data.npz"}


def folder_in_a_class(it: Patient) -> None:
    (it.data / "car" / "more").mkdir()


def empty_class(it: Patient) -> None:
    for path in (it.data / "truck").iterdir():
        path.unlink()
    for number in range(6, 12):
        (it.data / "car" / f"{number}.png").write_bytes((it.data / "car" / "0.png").read_bytes())


def no_image(it: Patient) -> None:
    (it.data / "car" / "0.png").write_text("not an image")


def cut_image(it: Patient) -> None:
    path = it.data / "truck" / "0.png"
    path.write_bytes(path.read_bytes()[:40])


def unknown_label(it: Patient) -> None:
    (it.data / "truck").rename(it.data / "trucks")


def three_images(it: Patient) -> None:
    for path in [*it.data.glob("*/[1-9].png")][:9]:
        path.unlink()


# The federation


def misspelt_federation(it: Patient) -> None:
    it.values["federation"] = "gate"


def stale_state(it: Patient) -> None:
    it.use_open(federation="stale", online=False)


def garbled_state(it: Patient) -> None:
    it.use_open(federation="garbled")
    it.site.publish_openly(Topics("garbled").state, b'{"format": 99}')


def another_signer(it: Patient) -> None:
    for name in ("ours", "theirs"):
        assert main(["init", "key", "--out", str(it.folder / name)]) == 0
    it.use_open(federation="signed")
    theirs = read_signing_key(it.folder / "theirs" / "signing.key")
    it.site.publish_openly(Topics("signed").state, encode(sign(state("signed"), theirs)))
    it.values["trusted_key"] = "ours/signing.pub"


def unsigned_state(it: Patient) -> None:
    assert main(["init", "key", "--out", str(it.folder / "ours")]) == 0
    it.values["trusted_key"] = "ours/signing.pub"


def name_in_use(it: Patient) -> None:
    it.use_open(federation="crowded")
    status = Status(INSTANCE, True, device="gate-7", activity="ready")
    it.site.publish_openly(Topics("crowded").device("gate-7", "status"), encode(status))


def two_coordinators(it: Patient) -> None:
    """The one that is online does not run with this state folder."""
    it.become_coordinator()
    it.values["federation"] = "gates"


def large_model(it: Patient) -> None:
    it.use_open(federation="large", manifest=Manifest(1, 256 * 1024, 10**9, 64 * "0"))
    it.values["max_model_bytes"] = 10**6
    it.box = renamed(it.box, free_bytes=lambda folder: 1 << 40)


def method_not_allowed(it: Patient) -> None:
    it.use_open(federation="plugin", files={"keepsake": 64 * "0"})


def trouble_at_the_coordinator(it: Patient) -> None:
    it.use_open(federation="trouble", problem="the disk is full")


CONFIGURATION_FAULTS: dict[Callable[[Patient], None], str] = {
    unknown_key: "unknown key 'hots' in [broker]; did you mean 'host'?",
    readable_password: "every user can read",
    missing_data_folder: "data.root: there is no",
    missing_ca: "broker.ca: there is no file",
    unusable_trusted_key: "holds no public Ed25519 key",
    mixed_up_key: "is not the key of the certificate",
}
"""Each fault with a part of the sentence."""

OPEN = "broker-open"
BOX_FAULTS: dict[Callable[[Patient], None], set[str]] = {
    package_missing: {"package-missing"},
    kernels_missing: {"kernels-not-compiled"},
    hardware_missing: {"hardware-unusable"},
    torch_for_the_cpu_on_a_jetson: {"hardware-degraded"},
    clock_behind_the_federation: {"clock-behind"},
    clock_behind_its_own_files: {"clock-behind"},
    full_disk: {"disk-full"},
    slow_disk: {"disk-slow"},
    state_below_a_file: {"state-unusable"},
    files_of_another_user: {"state-owner"},
    open_private_state: {"state-readable"},
    damaged_index: {"state-repairable"},
    damaged_indices: {"state-damaged"},
    damaged_private_state: {"state-damaged"},
    damaged_ledger: {"state-damaged"},
    damaged_journal: {"state-damaged"},
    lost_journal: {"state-damaged"},
    lost_mark: {"state-repairable"},
    lost_model: {"state-damaged"},
    no_data_section: {"data-embedded"},
    empty_folder: {"data-unreadable"},
    damaged_array: {"data-unreadable"},
    folder_in_a_class: {"data-unreadable"},
    empty_class: {"class-empty"},
    no_image: {"image-unreadable"},
    cut_image: {"image-unreadable"},
    unknown_label: {"label-unknown"},
    three_images: {"few-examples"},
    misspelt_federation: {"federation-unknown", "write-denied"},
    stale_state: {"coordinator-offline", OPEN},
    garbled_state: {"state-invalid", OPEN},
    another_signer: {"signature-refused", OPEN},
    unsigned_state: {"signature-refused"},
    name_in_use: {"name-in-use", OPEN},
    two_coordinators: {"name-in-use"},
    large_model: {"model-too-large", OPEN},
    method_not_allowed: {"method-not-allowed", OPEN},
    trouble_at_the_coordinator: {"federation-problem", OPEN},
}
"""Each fault with all that the doctor finds."""
