"""The embedded brokers, both kinds, as a client sees them."""

from __future__ import annotations

import hashlib
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fededge.broker import local as module
from fededge.broker import mosquitto as _mosquitto
from fededge.broker.local import Broker
from fededge.errors import ConfigError, TransportError

Kind = Literal["mosquitto", "python"]
WAIT = 5.0
QUIET = 0.15

NEEDS_MOSQUITTO = pytest.mark.skipif(_mosquitto.find() is None, reason="mosquitto is not installed")


@pytest.fixture(params=[pytest.param("mosquitto", marks=NEEDS_MOSQUITTO), "python"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "python":
        pytest.importorskip("amqtt")
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def broker(kind: Kind, tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", kind) as running:
        yield running


class Client:
    """A paho client whose messages arrive in a queue; `connect` waits for the broker's answer."""

    def __init__(
        self,
        broker: Broker,
        name: str = "",
        *,
        keep: bool = False,
        will: tuple[str, bytes] | None = None,
        user: tuple[str, str] | None = None,
        manual_ack: bool = False,
        reconnect: bool = False,
    ) -> None:
        five = broker.protocol == "5"
        version = MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311
        clean = None if five else not keep
        self.paho = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean,
            protocol=version,
            manual_ack=manual_ack,
            reconnect_on_failure=reconnect,
        )
        self.broker, self.five, self.keep = broker, five, keep
        self.messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.answers: queue.Queue[ReasonCode] = queue.Queue()
        self.lost = threading.Event()
        self.subscribed = threading.Event()
        self.paho.on_connect = lambda _c, _u, _f, code, _p: self.answers.put(code)
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_disconnect = lambda *_: self.lost.set()
        self.paho.on_subscribe = lambda *_: self.subscribed.set()
        self.paho.reconnect_delay_set(1, 1)
        if will is not None:
            self.paho.will_set(will[0], will[1], qos=1, retain=True)
        if user is not None:
            self.paho.username_pw_set(*user)

    def connect(self) -> ReasonCode:
        expiry = Properties(PacketTypes.CONNECT)
        expiry.SessionExpiryInterval = 3600 if self.keep else 0
        host, port = self.broker.host, self.broker.port
        if self.five:
            self.paho.connect(host, port, clean_start=not self.keep, properties=expiry)
        else:
            self.paho.connect(host, port)
        self.paho.loop_start()
        return self.answers.get(timeout=WAIT)

    def subscribe(self, topic: str) -> None:
        self.subscribed.clear()
        self.paho.subscribe(topic, qos=1)
        assert self.subscribed.wait(WAIT / 2)

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        self.paho.publish(topic, payload, qos=1, retain=retain).wait_for_publish(WAIT)

    def get(self) -> tuple[str, bytes, bool]:
        message = self.messages.get(timeout=WAIT)
        return message.topic, bytes(message.payload), message.retain

    def nothing(self) -> bool:
        """Return True if no message arrives for a while."""
        time.sleep(QUIET)
        return self.messages.empty()

    def vanish(self) -> None:
        """Close the socket without a DISCONNECT, as a process that is killed does."""
        connection = self.paho.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


Connect = Callable[..., Client]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    clients: list[Client] = []

    def make(*args: object, **options: object) -> Client:
        client = Client(broker, *args, **options)  # type: ignore[arg-type]
        clients.append(client)
        assert client.connect() == 0
        return client

    yield make
    for client in clients:
        client.close()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def soon(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fact()


def test_start_returns_when_it_accepts_and_stop_ends_it(kind: Kind, tmp_path: Path) -> None:
    broker = Broker(tmp_path, kind)
    assert (broker.port, broker.pid) == (0, None)
    broker.start()
    assert broker.kind == kind
    assert broker.protocol == {"mosquitto": "5", "python": "3.1.1"}[kind]
    assert min(broker.port, broker.pid or 0) > 0
    assert accepts(broker.port)
    broker.stop()
    broker.stop()
    assert broker.pid is None
    assert not accepts(broker.port)


def test_a_running_broker_is_not_started_again(broker: Broker) -> None:
    pid = broker.pid
    with pytest.raises(TransportError, match="runs already"):
        broker.start()
    assert broker.pid == pid


def test_port_zero_gives_each_broker_its_own(broker: Broker, kind: Kind, tmp_path: Path) -> None:
    with Broker(tmp_path / "other", kind) as other:
        assert other.port != broker.port
        assert accepts(broker.port)


def test_a_port_taken_in_between_is_replaced_by_another(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the free port before the broker binds it."""
    free_port, chosen = module._free_port, []
    with socket.socket() as thief:

        def steal(host: str, wanted: int) -> int:
            chosen.append(free_port(host, wanted))
            if len(chosen) == 1:
                thief.bind((host, chosen[0]))
            return chosen[-1]

        monkeypatch.setattr(module, "_free_port", steal)
        with Broker(tmp_path, kind) as broker:
            assert len(chosen) == 2
            assert broker.port == chosen[1] != chosen[0]


def test_a_wanted_port_in_use_is_one_clear_sentence(kind: Kind, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TransportError, match=f"127.0.0.1:{port} is in use; .* port 0"):
            Broker(tmp_path, kind, port=port).start()


def test_an_address_of_another_machine_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"192\.0\.2\.1:0 cannot be listened on"):
        Broker(tmp_path, kind, host="192.0.2.1").start()


def test_retained_messages_are_kept_replaced_and_cleared(connect: Connect) -> None:
    sender = connect()
    sender.publish("a/b", b"one", retain=True)
    sender.publish("a/b", b"two", retain=True)
    first = connect()
    first.subscribe("a/+")
    assert first.get() == ("a/b", b"two", True)
    sender.publish("a/b", b"", retain=True)
    assert first.get() == ("a/b", b"", False)
    second = connect()
    second.subscribe("a/+")
    assert second.nothing()


def test_retained_messages_reach_subscribers_only(connect: Connect) -> None:
    sender, subscriber = connect(), connect()
    subscriber.subscribe("a/#")
    sender.publish("a/b", b"one", retain=True)
    assert subscriber.get()[1] == b"one"
    assert connect().nothing()


def test_wildcards_match_as_the_standard_says(connect: Connect) -> None:
    sender, plus, hash_ = connect(), connect(), connect()
    plus.subscribe("a/+/c")
    hash_.subscribe("a/#")
    for topic in ("a", "a/b", "a/b/c", "a/b/c/d", "b/b/c", "a//c"):
        sender.publish(topic, b"x")
    assert [hash_.get()[0] for _ in range(5)] == ["a", "a/b", "a/b/c", "a/b/c/d", "a//c"]
    assert [plus.get()[0] for _ in range(2)] == ["a/b/c", "a//c"]
    assert plus.nothing()
    assert hash_.nothing()


def test_the_will_is_published_when_the_socket_closes_without_goodbye(connect: Connect) -> None:
    watcher = connect()
    watcher.subscribe("status/+")
    connect("polite", will=("status/polite", b"offline")).close()
    connect("rude", will=("status/rude", b"offline")).vanish()
    assert watcher.get() == ("status/rude", b"offline", False)
    assert watcher.nothing()
    late = connect()
    late.subscribe("status/+")
    assert late.get() == ("status/rude", b"offline", True)


def test_the_python_broker_publishes_the_will_of_a_client_that_falls_silent(tmp_path: Path) -> None:
    """Its socket stays open; keep-alive 1 s, so the broker gives up after 2 s (1.5 rounded up)."""
    pytest.importorskip("amqtt")
    with Broker(tmp_path, "python") as broker:
        watcher = Client(broker)
        assert watcher.connect() == 0
        watcher.subscribe("status/silent")
        fields = b"\x00\x06silent\x00\x0dstatus/silent\x00\x04gone"
        body = b"\x00\x04MQTT\x04\x06\x00\x01" + fields
        with socket.create_connection((broker.host, broker.port)) as silent:
            silent.sendall(bytes([0x10, len(body)]) + body)
            assert watcher.get() == ("status/silent", b"gone", False)
        watcher.close()


@pytest.mark.parametrize("kib", [256, 1024])
def test_a_large_payload_in_chunks_arrives_whole_and_in_order(connect: Connect, kib: int) -> None:
    size, count = kib << 10, (8 << 10) // kib
    payload = random.Random(kib).randbytes(size * count)
    subscribers = [connect(), connect()]
    for subscriber in subscribers:
        subscriber.subscribe("model/1/+")
    sender = connect()
    for index in range(count):
        chunk = payload[index * size : (index + 1) * size]
        sender.paho.publish(f"model/1/{index}", chunk, qos=1)
    for subscriber in subscribers:
        received = [subscriber.messages.get(timeout=WAIT) for _ in range(count)]
        assert [message.topic for message in received] == [f"model/1/{i}" for i in range(count)]
        assert all(message.qos == 1 for message in received)
        whole = b"".join(message.payload for message in received)
        assert hashlib.sha256(whole).digest() == hashlib.sha256(payload).digest()


def test_a_burst_of_more_than_1000_messages_to_a_slow_reader_loses_none(connect: Connect) -> None:
    """At mosquitto's own default a client that does not acknowledge gets the first 1020 only."""
    reader, sender = connect("slow", manual_ack=True), connect()
    reader.subscribe("burst")
    for number in range(1500):
        last = sender.paho.publish("burst", str(number).encode(), qos=1)
    last.wait_for_publish(WAIT)
    for number in range(1500):
        message = reader.messages.get(timeout=WAIT)
        assert message.payload == str(number).encode()
        reader.paho.ack(message.mid, message.qos)


def test_messages_wait_for_a_session_that_is_away(connect: Connect) -> None:
    device = connect("device", keep=True)
    device.subscribe("device/task")
    device.close()
    sender = connect()
    sender.publish("device/task", b"one")
    sender.publish("device/task", b"two")
    back = connect("device", keep=True)
    assert [back.get(), back.get()] == [
        ("device/task", b"one", False),
        ("device/task", b"two", False),
    ]
    back.close()
    assert connect("device", keep=True).nothing()


def test_an_unacknowledged_message_comes_again_after_a_broken_connection(connect: Connect) -> None:
    device = connect("device", keep=True, manual_ack=True)
    device.subscribe("task")
    sender = connect()
    sender.publish("task", b"done")
    sender.publish("task", b"not done")
    done = device.messages.get(timeout=WAIT)
    device.paho.ack(done.mid, done.qos)
    assert device.get()[1] == b"not done"
    time.sleep(QUIET)  # the acknowledgement leaves before the socket closes
    device.vanish()
    back = connect("device", keep=True)
    assert back.get() == ("task", b"not done", False)
    back.subscribe("other")
    assert back.nothing()


@pytest.mark.parametrize("keep", [False, True])
def test_a_second_connection_with_the_same_id_replaces_the_first(
    connect: Connect, keep: bool
) -> None:
    first = connect("twin", keep=keep)
    first.subscribe("news")
    second = connect("twin", keep=keep)
    second.subscribe("news")
    assert first.lost.wait(WAIT)
    time.sleep(QUIET)
    connect().publish("news", b"x")
    assert second.get()[1] == b"x"
    assert second.nothing()
    assert first.messages.empty()


@pytest.fixture
def guarded(kind: Kind, tmp_path: Path) -> Iterator[Broker]:
    users = {"camera": "s3cret: $7$ é", "coordinator": "x" * 200}
    with Broker(tmp_path / "with space", kind, users=users) as running:
        yield running


def answer(broker: Broker, name: str, user: tuple[str, str] | None) -> str:
    client = Client(broker, name, user=user)
    code = client.connect()
    client.close()
    return code.getName()


@pytest.mark.parametrize("user", [("camera", "s3cret: $7$ é"), ("coordinator", "x" * 200)])
def test_the_right_password_is_accepted(guarded: Broker, user: tuple[str, str]) -> None:
    assert answer(guarded, "c", user) == "Success"


@pytest.mark.parametrize(
    "user", [None, ("camera", "wrong"), ("camera", ""), ("camera", "x" * 200), ("nobody", "x")]
)
def test_anonymous_and_wrong_passwords_are_refused(
    guarded: Broker, user: tuple[str, str] | None
) -> None:
    assert answer(guarded, "c", user) == "Not authorized"


def test_a_refused_stranger_does_not_disturb_the_client_whose_id_it_uses(guarded: Broker) -> None:
    client = Client(guarded, "camera-1", user=("coordinator", "x" * 200))
    assert client.connect() == 0
    client.subscribe("news")
    assert answer(guarded, "camera-1", ("coordinator", "wrong")) == "Not authorized"
    client.publish("news", b"still here")
    assert client.get()[1] == b"still here"
    assert not client.lost.is_set()
    client.close()


def test_passwords_are_in_no_file_and_in_no_command_line(guarded: Broker) -> None:
    files = [path for path in guarded.folder.iterdir() if path.is_file()]
    assert {path.name for path in files} >= {"passwords", "broker.log"}
    for path in files:
        assert b"s3cret" not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
    assert b"s3cret" not in Path(f"/proc/{guarded.pid}/cmdline").read_bytes()


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "#a", " a"])
def test_user_names_that_break_the_password_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="user name must not"):
        _mosquitto.password_file({name: "x"})


@NEEDS_MOSQUITTO
def test_the_acl_confines_a_user_to_its_topics(tmp_path: Path) -> None:
    users = {"camera": "x", "coordinator": "y"}
    acl = "user coordinator\ntopic readwrite #\npattern readwrite device/%u/#\n"
    with Broker(tmp_path, "mosquitto", users=users, acl=acl) as broker:
        camera = Client(broker, user=("camera", "x"))
        coordinator = Client(broker, user=("coordinator", "y"))
        assert camera.connect() == coordinator.connect() == 0
        coordinator.subscribe("#")
        camera.publish("device/other/status", b"forged")
        camera.publish("device/camera/status", b"mine")
        assert coordinator.get()[0] == "device/camera/status"
        camera.close()
        coordinator.close()


def test_after_a_kill_it_starts_on_the_same_port_and_clients_come_back(
    broker: Broker, connect: Connect
) -> None:
    client = connect(reconnect=True)
    port, pid = broker.port, broker.pid
    broker.kill()
    assert client.lost.wait(WAIT)
    broker.start()
    assert broker.port == port
    assert broker.pid != pid
    assert client.answers.get(timeout=WAIT) == 0
    client.subscribe("a")
    client.publish("a", b"again")
    assert client.get()[1] == b"again"


def test_a_broker_that_died_by_itself_can_be_started_again(broker: Broker) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    assert soon(lambda: broker.pid is None)
    broker.start()
    assert accepts(broker.port)


@NEEDS_MOSQUITTO
def test_a_persistent_broker_keeps_retained_messages_and_sessions_across_sigkill(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path, "mosquitto", persistent=True) as broker:
        device = Client(broker, "device", keep=True)
        device.connect()
        device.subscribe("task")
        device.close()
        sender = Client(broker)
        sender.connect()
        sender.publish("state", b"round 7", retain=True)
        sender.publish("task", b"train")
        sender.close()
        assert soon(lambda: b"train" in (tmp_path / "mosquitto.db").read_bytes())
        broker.kill()
        broker.start()
        back = Client(broker, "device", keep=True)
        back.connect()
        assert back.get() == ("task", b"train", False)
        back.subscribe("state")
        assert back.get() == ("state", b"round 7", True)
        back.close()


PARENT = """
import sys, threading, time
from pathlib import Path
from fededge.broker.local import Broker
broker = Broker(Path(sys.argv[1]), sys.argv[2])
starter = threading.Thread(target=broker.start)  # a thread that ends must not take it along
starter.start()
starter.join()
time.sleep(0.2)
print(broker.port, broker.pid, flush=True)
time.sleep(60)
"""


def test_the_broker_dies_when_its_parent_is_killed(kind: Kind, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline().split()[0])
        assert accepts(port)
        parent.kill()
        assert soon(lambda: not accepts(port))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at Linux's /proc")
def test_stop_leaves_no_process_behind(kind: Kind, tmp_path: Path) -> None:
    """The broker leads a session of its own; its helper is in it."""
    with Broker(tmp_path, kind) as broker:
        leader = str(broker.pid)
        assert len(members(leader)) == 2
    assert soon(lambda: members(leader) == [])


def members(session: str) -> list[str]:
    """The processes of a session, without those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if fields[3] == session and fields[0] != "Z":
            found.append(path.parent.name)
    return found


def test_without_any_broker_both_remedies_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mosquitto, "find", lambda: None)
    monkeypatch.setitem(sys.modules, "amqtt", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TransportError) as caught:
        Broker(tmp_path).start()
    assert "`apt install mosquitto` or `pip install fededge[broker]`" in str(caught.value)


def test_auto_takes_mosquitto_first_and_python_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("amqtt")
    monkeypatch.setattr(_mosquitto, "find", lambda: "/usr/sbin/mosquitto")
    assert Broker(tmp_path).protocol == "5"
    monkeypatch.setattr(_mosquitto, "find", lambda: None)
    assert Broker(tmp_path).protocol == "3.1.1"
    with Broker(tmp_path) as broker:
        assert broker.kind == "python"


@pytest.mark.parametrize("options", [{"acl": "topic read #"}, {"persistent": True}])
def test_features_of_mosquitto_alone_are_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    monkeypatch.setattr(_mosquitto, "find", lambda: None)
    with pytest.raises(TransportError, match="python broker has no ACLs"):
        Broker(tmp_path, "python", **options).start()  # type: ignore[arg-type]
    with pytest.raises(TransportError, match=r"install one: `apt install mosquitto`$"):
        Broker(tmp_path, "auto", **options).start()  # type: ignore[arg-type]


@NEEDS_MOSQUITTO
def test_a_broker_that_does_not_come_up_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "broker.log").write_text("a line of yesterday\n")
    with pytest.raises(TransportError, match=r"did not start; the end of .*acl") as caught:
        Broker(tmp_path, "mosquitto", acl="nonsense here\n").start()
    assert "yesterday" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_clear_sentence(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file/broker: cannot be written"):
        Broker(tmp_path / "file" / "broker", kind).start()
