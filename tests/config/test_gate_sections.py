"""`[hardware.when]` and `[hardware.priority]` in an agent's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.config import AgentConfig, load, template
from fededge.config.gate_sections import PriorityConfig, WhenConfig
from fededge.errors import ConfigError
from fededge.hardware.gate import Conditions
from fededge.hardware.priority import Priority
from tests.config.test_config import AGENT, agent


def test_an_agent_without_the_sections_has_no_conditions(tmp_path: Path) -> None:
    hardware = agent(tmp_path, AGENT).hardware
    assert (hardware.when, hardware.priority) == (WhenConfig(), PriorityConfig())


def test_the_sections_are_read(tmp_path: Path) -> None:
    text = """
[hardware.when]
hours = ["22:00-06:00", "Sat,Sun 00:00-24:00"]
on_mains = true
below_celsius = 75
others_cpu_below = 0.5
[hardware.priority]
nice = 10
ionice = "best-effort:7"
stream_priority = "low"
"""
    hardware = agent(tmp_path, AGENT + text).hardware
    assert hardware.when.hours == ("22:00-06:00", "Sat,Sun 00:00-24:00")
    assert (hardware.when.on_mains, hardware.when.below_celsius) == (True, 75.0)
    assert hardware.priority == PriorityConfig(
        nice=10, ionice="best-effort:7", stream_priority="low"
    )


def test_every_key_is_one_of_the_hardwares() -> None:
    assert WhenConfig.__struct_fields__ == tuple(Conditions.__dataclass_fields__)
    assert PriorityConfig.__struct_fields__ == tuple(Priority.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[hardware.when]\nhours = ["at night"]\n', "hardware.when.hours: 'at night' is not a"),
        ("[hardware.when]\nhour = []\n", "unknown key 'hour' in [hardware.when]; did you mean"),
        ("[hardware.when]\nothers_cpu_below = 50\n", "hardware.when.others_cpu_below: expected"),
        ('[hardware.priority]\nionice = "last"\n', "hardware.priority.ionice is 'last'; allowed"),
        ("[hardware.priority]\nnice = -5\n", "hardware.priority.nice: expected int >= 0"),
        (
            '[hardware.priority]\nstream_priority = "high"\n',
            "hardware.priority.stream_priority: invalid enum value 'high'; allowed: 'default', ",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        agent(tmp_path, AGENT + text)
    assert sentence in str(error.value)


def test_a_template_has_the_sections_within_the_section(tmp_path: Path) -> None:
    given = {"hardware": {"device": "cpu", "when": {"on_mains": True}}}
    values = {"federation": "lab", "state": "here", "device": "box", **given}
    path = tmp_path / "agent.toml"
    path.write_text(template(AgentConfig, values))
    assert path.read_text().index("[hardware]") < path.read_text().index("[hardware.when]")
    hardware = load(path, AgentConfig, {}).hardware
    assert (hardware.device, hardware.when) == ("cpu", WhenConfig(on_mains=True))
