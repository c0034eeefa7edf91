"""A machine with a real systemd: a Debian root that systemd-nspawn boots, with FedEdge in /opt.

The root is made once by debootstrap, and kept in build/. Python, torch and the package itself are
bind-mounted read-only from the installation that runs the tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Container", "obstacle", "prepared_root"]

CHECKOUT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "mosquitto", "procps"),
    # The libraries of Python's own modules
    *("libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libsqlite3-0", "libssl3", "libstdc++6"),
    *("libgomp1", "zlib1g"),
)
MADE_BY = ("debootstrap", "systemd-nspawn", "nsenter")
BOOTED = {"running", "degraded"}

PYTHON, VENV = "/opt/python", "/opt/fededge"
SITE = f"{VENV}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
FOLDERS = {"fededge": "fededge", "fededge_server": "server", "fededge_agent": "device_agent"}

COMMAND = f"""#!{VENV}/bin/python
from fededge.__main__ import start
start()
"""


def obstacle() -> str:
    """The reason why no container can be booted here; empty if one can."""
    if os.geteuid() != 0:
        return "booting a container needs root"
    missing = [name for name in MADE_BY if shutil.which(name) is None]
    return f"there is no {', '.join(missing)} here" if missing else ""


def prepared_root() -> Path:
    """The base root, made if this description of it has none yet.

    Raises:
        RuntimeError: debootstrap failed; there may be no network.
    """
    text = " ".join((SUITE, *PACKAGES))
    place = CHECKOUT / "build" / "systemd" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not place.exists():
        new = place.with_name(f"{place.name}.{os.getpid()}")
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            _make_root(new)
            with contextlib.suppress(OSError):  # another process has made it meanwhile
                new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return place


def _make_root(root: Path) -> None:
    wanted = f"--include={','.join(PACKAGES)}"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", wanted, SUITE, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        raise RuntimeError(f"debootstrap failed: {made.stdout.strip().splitlines()[-1]}")
    for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")


def _make_venv(root: Path) -> None:
    """An empty virtual environment whose Python is the one that runs the tests."""
    home, binaries, site = (root / path.lstrip("/") for path in (VENV, f"{VENV}/bin", SITE))
    for folder in (binaries, site, root / PYTHON.lstrip("/"), *(site / name for name in FOLDERS)):
        folder.mkdir(parents=True)
    (home / "pyvenv.cfg").write_text(f"home = {PYTHON}/bin\n")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (binaries / "python").symlink_to(f"{PYTHON}/bin/{python}")
    (binaries / "fededge").write_text(COMMAND)
    (binaries / "fededge").chmod(0o755)


def _site_packages() -> list[Path]:
    """The folders of installed packages of this process."""
    own = Path(sysconfig.get_path("purelib"))
    return [own, *(Path(p) for p in sys.path if p.endswith("site-packages") and Path(p) != own)]


class Container:
    """A machine that can be switched on, asked, and switched off like any other."""

    def __init__(self, root: Path, log: Path, network: Sequence[str] = ()) -> None:
        """`network`: flags of systemd-nspawn; by default the machine has no network."""
        self.root = root
        self.log = log
        self.network = network or ("--private-network",)
        self._nspawn: subprocess.Popen[bytes] | None = None

    def copy_from(self, base: Path) -> None:
        """Make the root, as a copy with a virtual environment in it."""
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(self.root)], check=True)
        _make_venv(self.root)
        lines = [f"/opt/packages/{number}" for number, _ in enumerate(_site_packages())]
        (self.root / SITE.lstrip("/") / "packages.pth").write_text("\n".join(lines) + "\n")
        for library in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
            link = self.root / "usr/lib" / library.name  # its own path is another one inside
            link.symlink_to(f"{PYTHON}/lib/{library.name}")

    def _binds(self) -> Iterator[str]:
        yield f"--bind-ro={sys.base_prefix}:{PYTHON}"
        for number, folder in enumerate(_site_packages()):
            yield f"--bind-ro={folder}:/opt/packages/{number}"
        for name, source in FOLDERS.items():
            yield f"--bind-ro={CHECKOUT / source}:{SITE}/{name}"

    def boot(self) -> None:
        """Switch it on, and wait until all services of the boot have been started."""
        self.switch_on()
        self.wait_until_up()

    def switch_on(self) -> None:
        """Begin to boot."""
        command = ["systemd-nspawn", f"--directory={self.root}", "--register=no", "--keep-unit"]
        command += [*self.network, "--console=pipe", *self._binds(), "--boot"]
        with self.log.open("ab") as log:
            self._nspawn = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_until_up(self) -> None:
        """Wait until all services of the boot have been started."""
        self.wait_for(self._is_up, "the machine to boot")

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            raise RuntimeError(f"systemd-nspawn ended: {self.log.read_text()[-2000:]}")
        return bool(self._leaders()) and self.ask("systemctl", "is-system-running") in BOOTED

    def _leaders(self) -> list[str]:
        """The process ids of the machine's first process: one, or none before it is there."""
        assert self._nspawn is not None
        pid = self._nspawn.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root."""
        return subprocess.run(
            self.inside(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command inside, as root."""
        enter = ["nsenter", "--all", f"--target={self._leaders()[0]}", "env", "-i", *ENVIRONMENT]
        return [*enter, *command]

    def ask(self, *command: str) -> str:
        """The output of a command inside."""
        return self.run(*command).stdout.strip()

    def do(self, *command: str) -> str:
        """Run a command inside that must succeed; what it says."""
        done = self.run(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
        return done.stdout.strip()

    def show(self, unit: str, key: str) -> str:
        """A property of a unit."""
        return self.ask("systemctl", "show", "--value", f"--property={key}", unit)

    def wait_for(self, condition: Callable[[], Any], what: str, patience: float = 60.0) -> Any:
        """The condition's value once it is true; fails with the machine's journal otherwise."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.1)
        said = self.ask("journalctl", "--no-pager", "--lines=60") if self._leaders() else ""
        raise AssertionError(f"waited {patience:.0f} s for {what}\n{said}")

    def write(self, path: str, text: str) -> None:
        """Write a file inside; works also while it is switched off."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def cut_power(self) -> None:
        """End everything in it at once, in no order."""
        nspawn, self._nspawn = self._nspawn, None
        if nspawn is None:
            return
        pid = nspawn.pid
        with contextlib.suppress(OSError):
            for leader in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(leader), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            nspawn.wait(20)
        nspawn.kill()
        nspawn.wait()


ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/fededge/bin", "LANG=C.UTF-8", "HOME=/root")
