"""The hardware of a box: the device, threads and precision that its training uses."""

from fededge.hardware.choosing import Chosen, check_device_name, choose, examine
from fededge.hardware.gpu import Finding, kernels_finding
from fededge.hardware.probe import Probe
from fededge.hardware.settings import CPU, Hardware, MemoryFormat, Precision
from fededge.hardware.threads import threads_for, with_passive_threads

__all__ = [
    "CPU",
    "Chosen",
    "Finding",
    "Hardware",
    "MemoryFormat",
    "Precision",
    "Probe",
    "check_device_name",
    "choose",
    "examine",
    "kernels_finding",
    "threads_for",
    "with_passive_threads",
]
