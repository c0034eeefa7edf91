"""Every finding of `fededge doctor`: its name, its severity, why it matters, and the fix.

The table of docs/doctor.md is this one; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["FINDINGS", "Diagnosis", "FindingKind", "Severity", "found"]


class Severity(Enum):
    """An error keeps the service from its work; a warning may do so later."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class FindingKind:
    """One kind of finding; `fix` has placeholders for the values of the box."""

    severity: Severity
    why: str
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """A finding on this box: what is wrong, and the fix with the values of the box."""

    name: str
    what: str
    fix: str

    @property
    def severity(self) -> Severity:
        return FINDINGS[self.name].severity

    @property
    def why(self) -> str:
        return FINDINGS[self.name].why


def found(name: str, what: str, /, **values: object) -> Diagnosis:
    """A diagnosis of this kind; `values` fill the placeholders of its fix."""
    return Diagnosis(name, what, FINDINGS[name].fix.format(**values))


def _error(why: str, fix: str) -> FindingKind:
    return FindingKind(Severity.ERROR, why, fix)


def _warning(why: str, fix: str) -> FindingKind:
    return FindingKind(Severity.WARNING, why, fix)


CONFIGURATION = {
    "config-invalid": _error(
        "the service does not start with this file", "edit {config} as the sentence says"
    ),
    "username-not-device": _warning(
        "a closed broker confines a user to the topics of the device with the same name",
        'set device = "{user}" in {config}, or get this device\'s own login',
    ),
    "data-missing": _error(
        "an agent without examples does not start",
        'add to {config}: [data] source = "folder" and root = "<folder>"',
    ),
}

INSTALLATION = {
    "package-missing": _error(
        "this configuration needs a package that is not installed", "pip install {package}"
    ),
    "kernels-not-compiled": _warning(
        "training runs the slower implementation in plain torch",
        "pip install --no-build-isolation --force-reinstall --no-deps .",
    ),
    "hardware-unusable": _error(
        "no training can start on the device that [hardware] names",
        'set [hardware] device = "auto" in {config}',
    ),
    "hardware-degraded": _warning("training is slower than this box allows", "{fix}"),
}

BROKER = {
    "broker-name-unknown": _error(
        "without an address there is no connection",
        "getent hosts {host}; then correct [broker] host in {config}",
    ),
    "broker-refused": _error(
        "no broker listens there, so nothing can be sent or received",
        "systemctl start mosquitto (on {host}), or correct [broker] port in {config}",
    ),
    "broker-silent": _error(
        "a firewall drops the packets, or the server is no MQTT broker",
        "nc -vz {host} {port}; then open the port, or correct [broker] in {config}",
    ),
    "broker-not-mqtt": _error(
        "the server hangs up: it does not speak this protocol",
        'try [broker] protocol = "3.1.1" in {config}, or correct its port',
    ),
    "mqtt-version": _error(
        "the broker refuses this version of MQTT", 'set [broker] protocol = "3.1.1" in {config}'
    ),
    "tls-expected": _error(
        "the broker speaks TLS on this port, and the configuration does not",
        "set [broker] tls = true and ca in {config}",
    ),
    "tls-not-spoken": _error(
        "the configuration asks for TLS, and this port has none",
        "correct [broker] port in {config} (usually 8883)",
    ),
    "tls-untrusted": _error(
        "another CA signed the broker's certificate, or somebody poses as the broker",
        "copy the ca.crt of the broker's CA to {ca}",
    ),
    "tls-other-name": _error(
        "the certificate is for another name, so the broker cannot prove who it is",
        "fededge init certificates --out <new folder> --broker {host}",
    ),
    "tls-expired": _error(
        "an expired certificate is refused by everybody",
        "rm broker.crt broker.key; fededge init certificates --out <its folder> --broker {host}",
    ),
    "tls-not-yet-valid": _error(
        "the certificate begins in the future, by this box's clock", "timedatectl set-ntp true"
    ),
    "tls-expires-soon": _warning(
        "on that day the whole fleet loses its broker",
        "rm broker.crt broker.key; fededge init certificates --out <its folder> --broker {host}",
    ),
    "certificate-expired": _error(
        "the broker refuses an expired client certificate",
        "fededge rotate certificates --out <its folder> --devices {name}; copy both files here",
    ),
    "certificate-expires-soon": _warning(
        "on that day this box loses the broker",
        "fededge rotate certificates --out <its folder> --devices {name}; copy both files here",
    ),
    "certificate-refused": _error(
        "the broker lets nobody in without a certificate that it trusts",
        "fededge init certificates --out <its folder> --devices {name}; then copy both files here",
    ),
    "login-refused": _error(
        "the broker does not accept this user with this password",
        "fededge init broker --out <its folder> --devices {name}; then copy its password here",
    ),
    "connection-refused": _error(
        "the broker turns this client away", "journalctl -u mosquitto (on {host})"
    ),
    "qos-too-low": _error(
        "messages may get lost without QoS 1, and the broker allows QoS 0 only",
        "remove max_qos from mosquitto.conf; systemctl restart mosquitto",
    ),
    "retain-unsupported": _error(
        "a device that connects later never learns the state of the federation",
        "set retain_available true in mosquitto.conf; systemctl restart mosquitto",
    ),
    "wildcards-unsupported": _error(
        "the coordinator cannot subscribe to the topics of its devices",
        "allow wildcard subscriptions in the broker's configuration",
    ),
    "packet-too-small": _error(
        "the broker disconnects whoever sends a chunk",
        "set max_packet_size {needed} in mosquitto.conf, or [transfer] chunk_bytes = {room}",
    ),
    "broker-open": _warning(
        "everybody who reaches the broker can replace the model",
        "fededge init broker --out broker --federation {federation} --devices <id> <id>",
    ),
    "write-denied": _error(
        "the access list keeps this user from a topic that it needs",
        "fededge init broker --out <its folder> --federation {federation}; check the user's name",
    ),
    "read-denied": _error(
        "the access list keeps this user from hearing a topic that it needs",
        "fededge init broker --out <its folder> --federation {federation}; check the user's name",
    ),
    "access-too-wide": _warning(
        "this user may write what belongs to others, so a stolen box can harm the fleet",
        "fededge init broker --out <its folder> --federation {federation}; use its acl",
    ),
    "chunk-lost": _error(
        "models and updates travel in chunks of this size", "journalctl -u mosquitto (on {host})"
    ),
}

FEDERATION = {
    "federation-unknown": _warning(
        "no coordinator has published a state under this name, or this user may not read it",
        "fededge coordinator --config <its file>, or correct federation in {config}",
    ),
    "state-invalid": _error(
        "an agent ignores a state that it cannot read",
        "install the same FedEdge on both sides: pip install --upgrade fededge",
    ),
    "signature-refused": _error(
        "an agent acts only on states that its trusted_key has signed",
        "copy the coordinator's signing.pub to {key}",
    ),
    "coordinator-offline": _warning(
        "the retained state is an old one; no round goes on", "systemctl start fededge-coordinator"
    ),
    "name-in-use": _error(
        "two services under one name disturb each other",
        "fededge status --config {config}; stop one of them, or rename it",
    ),
    "model-too-large": _error(
        "the agent refuses the federation's model", "set max_model_bytes = {bytes} in {config}"
    ),
    "method-not-allowed": _error(
        "the federation's method runs a file that this device has not allowed",
        "add '<file>.py:{method}' to methods in {config}",
    ),
    "federation-problem": _warning(
        "the coordinator itself reports it", "fededge status --config {config}"
    ),
}

STORAGE = {
    "clock-behind": _error("certificates and logs need the right time", "timedatectl set-ntp true"),
    "disk-full": _error(
        "models and updates are written to disk before they count",
        "df -h {folder}; free some space",
    ),
    "disk-slow": _warning(
        "every update waits for the disk", "use another disk for state in {config}"
    ),
    "state-unusable": _error(
        "the service keeps its state there", "sudo install -d -o $USER -m 700 {folder}"
    ),
    "state-owner": _error(
        "a service of another user cannot read its state", "sudo chown -R {user} {folder}"
    ),
    "state-readable": _warning(
        "other users of this box can read private state", "chmod -R go-rwx {folder}"
    ),
    "state-damaged": _error(
        "the service refuses to go on from damaged state",
        "restore a backup of {folder}, or move it away to begin anew",
    ),
    "state-repairable": _warning(
        "the service repairs it from its copy when it starts",
        "dmesg --level err",
    ),
}

DATA = {
    "data-unreadable": _error("the device has nothing to train on", "ls -l {root}"),
    "class-empty": _warning(
        "the device learns nothing about this class", "add images to it, or: rmdir {folder}"
    ),
    "image-unreadable": _error("an image that cannot be decoded is of no use", "rm {image}"),
    "label-unknown": _error(
        "the federation has no such class, so the device cannot take part", "mv {folder} {other}"
    ),
    "few-examples": _warning(
        "too few examples to train and to hold some out", "add images below {root}"
    ),
}

FINDINGS: dict[str, FindingKind] = {
    **CONFIGURATION,
    **INSTALLATION,
    **BROKER,
    **FEDERATION,
    **STORAGE,
    **DATA,
}
