"""Federated averaging with nothing around it: raw TCP, and bare paho on a broker.

The yardsticks of `benchmarks/round.py`. Four devices and a server are processes of their own, and a
device trains with FedEdge's own trainer: all that differs is how models travel. Nothing is durable,
checked, encrypted or exported, and nothing survives the death of a process.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from fededge.config import DataConfig, ModelConfig
from fededge.data.local import device_examples, model_spec
from fededge.flat import FlatModel
from fededge.hardware import CPU, Hardware
from fededge.methods import Hyper, Private, method
from fededge.models import Preprocess, build_for
from fededge.training import Task, Trainer, prepare_training

__all__ = ["BareRounds", "Job", "rounds_over_paho", "rounds_over_tcp", "share"]

LENGTH = struct.Struct("<Q")
CHUNK = 1 << 20
"""Bytes of a chunk: the size at which bare paho is fastest with large models."""

TIMEOUT = 900.0


@dataclass(frozen=True)
class Job:
    """The work of a round: the network, the devices, and the examples and hyper-parameters."""

    model: str
    devices: int
    examples: int
    rounds: int
    hyper: Hyper
    hardware: Hardware = CPU


@dataclass(frozen=True)
class BareRounds:
    """The seconds of each round, and the server's CPU seconds."""

    seconds: list[float]
    server_cpu_s: float


def share(examples: int, index: int) -> DataConfig:
    """A share of the embedded images that has about this many examples."""
    return DataConfig(
        source="embedded", split="uniform", devices=max(1, 6000 // examples), index=index
    )


class Device:
    """One device's training, as an agent's trainer process does it."""

    def __init__(self, job: Job, index: int) -> None:
        prepare_training(job.hardware)
        spec = model_spec(ModelConfig(name=job.model), DataConfig(source="embedded"))
        net = FlatModel(build_for(spec, seed=0))
        data = device_examples(share(job.examples, index), spec)
        self.hyper = job.hyper
        self.trainer = Trainer(
            f"d{index}", net, Preprocess(spec), data, method("fedavg"), job.hardware
        )

    def turn(self, number: int, model: bytearray) -> memoryview:
        received = torch.frombuffer(model, dtype=torch.float32)
        answer = self.trainer.turn(Task(0, number, self.hyper, received, {}), Private())
        return _bytes_of(answer.upload.numpy())


def first_model(job: Job) -> memoryview:
    spec = model_spec(ModelConfig(name=job.model), DataConfig(source="embedded"))
    vector = FlatModel(build_for(spec, seed=0), trains=False).vector
    return _bytes_of(vector.numpy().copy())


def mean(updates: list[bytearray]) -> memoryview:
    total = np.frombuffer(updates[0], np.float32).copy()
    for update in updates[1:]:
        total += np.frombuffer(update, np.float32)
    total /= len(updates)
    return _bytes_of(total)


def _bytes_of(vector: np.ndarray[Any, Any]) -> memoryview:
    return vector.data.cast("B")


Program = Callable[..., None]


def _run(job: Job, server: Program, device: Program, *args: Any) -> BareRounds:
    """Run a server and its devices as processes, and return what the server measured."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [spawn.Process(target=server, args=(job, results, *args), daemon=True)]
    processes += [
        spawn.Process(target=device, args=(job, index, *args), daemon=True)
        for index in range(job.devices)
    ]
    for process in processes:
        process.start()
    try:
        return BareRounds(*results.get(timeout=TIMEOUT))
    finally:
        for process in processes:
            process.kill()
            process.join()


# Raw TCP


def rounds_over_tcp(job: Job) -> BareRounds:
    """One connection a device; a message is its length and the vector."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return _run(job, _tcp_server, _tcp_device, port)


def _tcp_server(job: Job, results: Any, port: int) -> None:
    torch.set_num_threads(1)
    model, seconds = first_model(job), list[float]()
    with socket.create_server(("127.0.0.1", port)) as listening:
        peers = [listening.accept()[0] for _ in range(job.devices)]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.recv(1)  # it is ready
    before = time.process_time()
    for _ in range(job.rounds):
        began = time.perf_counter()
        for peer in peers:
            _send(peer, model)
        model = mean([_receive(peer) for peer in peers])
        seconds.append(time.perf_counter() - began)
    results.put((seconds, time.process_time() - before))
    time.sleep(TIMEOUT)


def _tcp_device(job: Job, index: int, port: int) -> None:
    device = Device(job, index)
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(b"\1")
    for number in range(job.rounds):
        _send(peer, device.turn(number, _receive(peer)))
    peer.recv(1)


def _send(peer: socket.socket, vector: memoryview) -> None:
    peer.sendall(LENGTH.pack(len(vector)))
    peer.sendall(vector)


def _receive(peer: socket.socket) -> bytearray:
    (size,) = LENGTH.unpack(peer.recv(LENGTH.size, socket.MSG_WAITALL))
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        got += peer.recv_into(view[got:])
    return data


# Bare paho


def rounds_over_paho(job: Job, port: int) -> BareRounds:
    """QoS 1 in chunks of 1 MiB, through the broker on this port."""
    return _run(job, _paho_server, _paho_device, port)


def _paho_server(job: Job, results: Any, port: int) -> None:
    torch.set_num_threads(1)
    model, seconds = first_model(job), list[float]()
    size = len(model)
    inbox = _connect("server", port, "bare/up/#")
    updates = {str(index): bytearray(size) for index in range(job.devices)}
    for _ in updates:
        inbox.get()  # each one says that it is ready
    before = time.process_time()
    for number in range(job.rounds):
        began = time.perf_counter()
        _publish(inbox.client, f"bare/down/{number}", model)
        missing = job.devices * _chunks(size)
        while missing:
            topic, payload = inbox.get()
            _, _, name, _, chunk = topic.split("/")
            updates[name][int(chunk) * CHUNK : (int(chunk) + 1) * CHUNK] = payload
            missing -= 1
        model = mean([updates[name] for name in sorted(updates)])
        seconds.append(time.perf_counter() - began)
    results.put((seconds, time.process_time() - before))
    time.sleep(TIMEOUT)


def _paho_device(job: Job, index: int, port: int) -> None:
    device = Device(job, index)
    size = device.trainer.net.vector.nbytes
    inbox = _connect(f"device-{index}", port, "bare/down/#")
    inbox.client.publish(f"bare/up/{index}/ready/0", b"\1", qos=1, retain=True)
    for number in range(job.rounds):
        model = bytearray(size)
        for _ in range(_chunks(size)):
            topic, payload = inbox.get()
            chunk = int(topic.rsplit("/", 1)[1])
            model[chunk * CHUNK : (chunk + 1) * CHUNK] = payload
        _publish(inbox.client, f"bare/up/{index}/{number}", device.turn(number, model))
    time.sleep(TIMEOUT)


class Inbox:
    """A connected client, and the messages that come in."""

    def __init__(self, client: mqtt.Client, messages: queue.SimpleQueue[tuple[str, bytes]]) -> None:
        self.client = client
        self._messages = messages

    def get(self) -> tuple[str, bytes]:
        return self._messages.get(timeout=TIMEOUT)


def _connect(name: str, port: int, topic: str) -> Inbox:
    messages: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
    subscribed: queue.SimpleQueue[None] = queue.SimpleQueue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(100)
    client.on_message = lambda _c, _u, m: messages.put((m.topic, bytes(m.payload)))
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.on_socket_open = _without_delay
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe(topic, qos=1)
    subscribed.get(timeout=TIMEOUT)
    return Inbox(client, messages)


def _without_delay(_client: Any, _data: Any, opened: Any) -> None:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _publish(client: mqtt.Client, topic: str, vector: memoryview) -> None:
    for chunk in range(_chunks(len(vector))):
        piece = bytes(vector[chunk * CHUNK : (chunk + 1) * CHUNK])
        client.publish(f"{topic}/{chunk}", piece, qos=1)


def _chunks(size: int) -> int:
    return -(-size // CHUNK)
