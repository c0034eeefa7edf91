"""Topics: building, parsing, and refusal of any other topic."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fededge.errors import ConfigError, WireError
from fededge.wire.topics import DEVICE_KINDS, Address, Topics, check_name

LETTERS = string.ascii_letters + string.digits
names = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(f"{LETTERS}_.-", max_size=63))
versions = st.builds("{:06d}-{:016x}".format, st.integers(0, 999_999), st.integers(0, 2**64 - 1))
numbers = st.integers(0, 999_999)


@settings(deadline=None)
@given(federation=names, device=names, version=versions, chunk=numbers)
def test_every_topic_that_is_built_is_read_back(
    federation: str, device: str, version: str, chunk: int
) -> None:
    topics = Topics(federation)
    expected = {
        topics.state: Address("state"),
        f"{topics.coordinator}/status": Address("coordinator status"),
        f"{topics.coordinator}/claim": Address("coordinator claim"),
        topics.model(version, chunk): Address("model", version=version, chunk=chunk),
        topics.update(device, version, chunk): Address("update", device, version, chunk),
        **{topics.device(device, kind): Address(kind, device) for kind in DEVICE_KINDS},
    }
    assert {topic: topics.parse(topic) for topic in expected} == expected
    assert all(topic.startswith(f"fededge/v1/{federation}/") for topic in expected)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_topic_or_a_wire_error(text: str) -> None:
    for topic in (text, f"fededge/v1/fleet/{text}", f"fededge/v1/fleet/device/{text}/status"):
        try:
            address = Topics("fleet").parse(topic)
        except WireError:
            continue
        assert address.device in topic


VERSION = "000001-0123456789abcdef"


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "/",
        "fededge/v1/fleet",
        "fededge/v1/fleet/",
        "fededge/v1/fleet/state/",
        "fededge/v1/fleet/state\n",
        "fededge/v2/fleet/state",
        "fededge/v1/other/state",
        "fededge/v1/fleet/x/fededge/v1/fleet/state",
        "xfededge/v1/fleet/state",
        "fededge/v1/fleet/coordinator/report",
        "fededge/v1/fleet/device/../status",
        "fededge/v1/fleet/device/a b/status",
        "fededge/v1/fleet/device/a\0/status",
        "fededge/v1/fleet/device/a\n/status",
        "fededge/v1/fleet/device/+/status",
        "fededge/v1/fleet/device/#",
        "fededge/v1/fleet/device//status",
        f"fededge/v1/fleet/device/{'a' * 65}/status",
        "fededge/v1/fleet/device/a/password",
        f"fededge/v1/fleet/device/a/update/{VERSION}",
        f"fededge/v1/fleet/device/a/update/{VERSION}/-1",
        f"fededge/v1/fleet/device/a/update/{VERSION}/01",
        f"fededge/v1/fleet/device/a/update/{VERSION}/1000000",
        f"fededge/v1/fleet/device/a/update/{VERSION}/٣",
        "fededge/v1/fleet/device/a/update/٣٣٣٣٣٣-0123456789abcdef/0",
        f"fededge/v1/fleet/model/../{VERSION}/0",
        f"fededge/v1/fleet/model/{VERSION.upper()}/0",
    ],
)
def test_a_hostile_topic_is_refused(topic: str) -> None:
    with pytest.raises(WireError):
        Topics("fleet").parse(topic)


def test_the_error_for_a_topic_is_bounded() -> None:
    with pytest.raises(WireError) as caught:
        Topics("fleet").parse("x" * 60_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a+", "a#", "ä", "a\n", "a" * 65])
def test_a_name_that_no_topic_can_carry_is_a_mistake_in_the_configuration(name: str) -> None:
    with pytest.raises(ConfigError, match="must be 1 to 64"):
        check_name("device", name)


@settings(deadline=None)
@given(names)
def test_a_name_that_a_topic_can_carry_is_taken(name: str) -> None:
    assert check_name("device", name) == name
