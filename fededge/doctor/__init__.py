"""The examination of a coordinator's or an agent's configuration: checks, and what they find."""

from fededge.doctor.catalogue import FINDINGS, Diagnosis, Severity, found
from fededge.doctor.examination import examine
from fededge.doctor.subject import Box, Subject

__all__ = ["FINDINGS", "Box", "Diagnosis", "Severity", "Subject", "examine", "found"]
