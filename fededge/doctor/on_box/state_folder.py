"""The state folder: its owner, its permissions, and the integrity of what is in it."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable, Iterator
from pathlib import Path

from fededge.config import AgentConfig
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.on_box.disk import existing
from fededge.doctor.subject import Subject
from fededge.storage.sealed import read_sealed

__all__ = ["intact", "readable_by_others", "usable"]

MOST_LISTED = 5


def usable(subject: Subject) -> Iterator[Diagnosis]:
    """The service must be able to make or enter the folder, and own what is in it."""
    folder = Path(subject.config.state)
    there = existing(folder)
    if not there.is_dir():
        yield found("state-unusable", f"{there}: not a folder", **subject.values)
    elif not os.access(there, os.W_OK | os.X_OK):
        yield found("state-unusable", f"{there}: this user cannot write in it", **subject.values)
    elif folder.is_dir():
        yield from _foreign(subject, folder)


def _foreign(subject: Subject, folder: Path) -> Iterator[Diagnosis]:
    """Files of another user than the folder's: a service was once run as somebody else."""
    owner = folder.stat().st_uid
    foreign: list[Path] = []
    with contextlib.suppress(OSError):  # a file that a running service removes meanwhile
        foreign += [path for path in folder.rglob("*") if path.lstat().st_uid != owner]
    if foreign:
        names = ", ".join(str(path) for path in foreign[:MOST_LISTED])
        what = f"{len(foreign)} files are not {_user(owner)}'s, as the folder is: {names}"
        yield found("state-owner", what, **subject.values, user=_user(owner))


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def readable_by_others(subject: Subject) -> Iterator[Diagnosis]:
    """An agent's private state is for its user alone."""
    if not isinstance(subject.config, AgentConfig) or not subject.folder.is_dir():
        return
    mode = subject.folder.stat().st_mode
    if mode & 0o077:
        what = f"{subject.folder} has mode {mode & 0o777:o}"
        yield found("state-readable", what, folder=subject.folder)


def intact(subject: Subject) -> Iterator[Diagnosis]:
    """Read what the service would read at its start, and change nothing."""
    folder = Path(subject.config.state)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        return  # `usable` says so
    try:
        if isinstance(subject.config, AgentConfig):
            yield from _agent(subject)
        else:
            yield from _coordinator(subject)
    except OSError as error:
        yield found("state-damaged", f"{error.filename}: {error.strerror}", **subject.values)


def _coordinator(subject: Subject) -> Iterator[Diagnosis]:
    from fededge_server.store.checking import damage

    yield from _damaged(subject, damage(subject.folder))


def _damaged(subject: Subject, damage: Iterable[tuple[str, bool]]) -> Iterator[Diagnosis]:
    for what, repairable in damage:
        name = "state-repairable" if repairable else "state-damaged"
        yield found(name, what, **subject.values)


def _agent(subject: Subject) -> Iterator[Diagnosis]:
    from fededge_agent.store.checking import damage
    from fededge_agent.store.file_names import LEDGER

    yield from _damaged(subject, damage(Path(subject.config.state)))
    ledger = Path(subject.config.state) / LEDGER
    if ledger.exists() and read_sealed(ledger, dict[str, int]) is None:
        yield found("state-damaged", f"{ledger}: unreadable or damaged", **subject.values)
