"""The device's status: what it publishes about itself."""

from __future__ import annotations

from typing import Literal

from fededge import __version__
from fededge._internal.plain_text import plain
from fededge.service.presence import Holder
from fededge.wire.messages import Status
from fededge_agent.exports.promotion import Promotion
from fededge_agent.machine.agent import AgentMachine
from fededge_agent.machine.events import Activity
from fededge_agent.trust import Trust
from fededge_agent.turn_runner import TurnRunner

__all__ = ["StatusWriter", "one_line"]

MOST_CHARACTERS = 1000
"""Length of a problem in the status."""


def one_line(text: str) -> str:
    """A problem as the status can carry it: it may quote what others announced."""
    return plain(text, MOST_CHARACTERS)


class StatusWriter:
    """Writes the status: the machine's view, the job, the models, the trust and the name.

    `remark` says what the broker does not let us do, or that no state comes.
    """

    def __init__(
        self,
        device: str,
        machine: AgentMachine,
        runner: TurnRunner,
        promotion: Promotion,
        trust: Trust,
        holder: Holder,
    ) -> None:
        self.device = device
        self.machine = machine
        self.runner = runner
        self.promotion = promotion
        self.trust = trust
        self.holder = holder
        self._announced_steps = (0, 0)
        self.remark = ""

    def online(self, answers: str = "") -> Status:
        """The status now; `answers` is the nonce of a claim to our name."""
        view = self.machine.view
        problem = (
            view.problem
            or self.trust.problem
            or self.remark
            or (self.holder.rival and self.rivalry)
            or self.runner.flaw
        )
        return self._status(True, view.activity, one_line(problem), answers)

    def offline(self) -> Status:
        """The status that we leave behind."""
        return self._status(False, "offline", "", "")

    @property
    def steps(self) -> tuple[int, int]:
        """The steps of the training that is under way, and their total; else zeros."""
        return self.runner.steps if self.machine.view.activity == "training" else (0, 0)

    @property
    def advanced(self) -> bool:
        """True if the training has advanced since the status was last written."""
        return self.steps not in ((0, 0), self._announced_steps)

    @property
    def rivalry(self) -> str:
        rival = self.holder.rival
        return f"another agent runs as device '{self.device}', or poses as it ({rival})"

    def _status(
        self, online: bool, activity: Activity | Literal["offline"], problem: str, answers: str
    ) -> Status:
        self._announced_steps = self.steps if online else (0, 0)
        return Status(
            instance=self.holder.instance,
            online=online,
            answers=answers,
            device=self.device,
            activity=activity,
            layout=self.runner.layout_hash,
            examples=self.runner.examples,
            software=__version__,
            problem=problem,
            step=self._announced_steps[0],
            steps=self._announced_steps[1],
            **self.promotion.describe(),
        )
