"""The stable name of every line of the log: scripts and alerts go by it, not by the wording.

A line is named by how it begins, which is never text from the network; where that is quoted from
elsewhere, the call gives the name itself (`extra={"event": …}`). docs/logs.md says what they mean.
"""

from __future__ import annotations

import re

__all__ = ["EVENTS", "UNNAMED", "event_of"]

UNNAMED = "other"
"""A line of a library, or of a method of one's own."""

EVENTS = {
    # Both services
    "starting": "starting: ",
    "connected": "connected to ",
    "reconnected": "reconnected to ",
    "connection-lost": "connection to ",
    "broker-awaited": "waiting for the broker",
    "stopped": "stopped",
    "failed": "",
    "message-dropped": "message on ",
    "lines-left-out": "",
    "access-denied": "the broker does not let ",
    "claim-unheard": "the broker has not echoed",
    "name-contested": "another (coordinator|agent) ",
    "disk-full": "the disk is full",
    "disk-free": "there is space again",
    # The coordinator
    "run-resumed": "resuming after round",
    "weights-doubtful": "",
    "run-done": r"all \d+ rounds are done",
    "run-rests": "the run rests: ",
    "run-goes-on": "the run goes on",
    "round-opened": r"round \d+: asking",
    "round-short": r"round \d+: deadline",
    "version-made": r"version \S+ from",
    "version-bad": "",
    "version-unmeasured": ".*: this version has no accuracy",
    "run-back": "back to version",
    "run-not-back": "the run cannot go back",
    "settings-changed": "settings from version",
    "settings-edited": "setting ",
    "settings-missing": "settings were applied",
    "order-given": "ordered by the operator",
    "api-unavailable": "the API is not available",
    "api-failed": "a question cannot be answered",
    "rollout-stage": r"rollout \d+: ",
    "device-joined": "joined with",
    "device-left": "left$",
    "device-gone": "gave no sign of life",
    "device-rests": "rests: ",
    "device-unfit": "cannot take part: ",
    "device-failed": "failed, ",
    "device-silent": "did not answer, backs off",
    "device-grew": r"announces \d+ examples",
    "device-mistaken": "a status of device ",
    "device-set-aside": "an event was dropped",
    "update-answered": "(update (?!accepted$|dropped$)|asked again)",
    "chunk-dropped": "chunk dropped",
    "state-overwritten": "the federation's state was written by somebody else",
    "merge-failed": "",
    "network-not-kept": ".*; the next start builds the network again",
    # The agent
    "prepared": "ready: ",
    "method-allowed": r"method \S+: ",
    "network-allowed": r"network \S+: ",
    "training": r"round \d+: training from",
    "training-abandoned": "training abandoned",
    "turn-failed": "the turn failed",
    "update-settled": "update (accepted|dropped)$",
    "update-dropped": "the update belongs to another run",
    "update-not-reported": "the update is not reported",
    "update-not-sent": r"chunk \d+ is not sent",
    "answer-not-saved": "the answer cannot be saved",
    "model-not-downloaded": r"model \S+ is not downloaded",
    "model-damaged": r"model \S+ is damaged",
    "resting": "resting: ",
    "awake": "may train again",
    "run-doubted": "run '.*' has other terms",
    "state-refused": "",
    "data-unfit": "",
    "job-failed": "",
    "worker-failed": "the worker failed",
    "orphan-killed": "killing the ",
    "hardware-chosen": "",
    "hardware-unused": "",
    "priority-refused": "hardware.priority: ",
    "weights-not-converged": ".*: on .* the weights W have not converged",
    # The personal model
    "personal-model": "personal model of round",
    "model-bad": r"model \d+ was reported bad",
    "model-irreplaceable": "there is no other model",
    "model-withdrawn": r"model \d+ is withdrawn",
    "model-skipped": r"model \d+ is skipped",
    "model-unmeasured": "model .* cannot be measured",
    "rollout-followed": r"rollout \d+, model",
    "export-failed": "no (ONNX model can be made|personal model is exported)",
    "promotion-failed": "",
    "variant-left-out": "this model gets no",
    "variant-worse": r"\S+ has an accuracy of",
    "model-not-removed": ".*: an old model cannot be removed",
    "network-traced-again": "the network is traced again",
    "trace-not-saved": "the traced network is not saved",
    # Files
    "file-damaged": ".*: (missing|damaged)",
    "marks-not-written": "",
    "journal-migrated": "",
    "image-skipped": "",
    "state-awaited": "",
    "coordinator-offline": "the coordinator is offline",
    "coordinator-online": "the coordinator is online",
    "metrics-not-kept": ".*: metrics are not kept",
}
"""Each event with the regular expression of how its line begins; empty: the call names it."""

_BEGINNINGS = [(name, re.compile(text)) for name, text in EVENTS.items() if text]


def event_of(text: str) -> str:
    """The name of a line by its beginning."""
    return next((name for name, begins in _BEGINNINGS if begins.match(text)), UNNAMED)
