"""A slow, lossy link in front of a broker: a TCP proxy that shapes what passes it.

Each direction has so many bits a second, every segment takes the delay, and a lost one comes a
round trip later, as often as it is lost again, with everything behind it waiting: what a TCP with
selective acknowledgements and a large window makes of such a link.
"""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SlowLink"]

SEGMENT = 1460
MOST_ON_THE_WAY = 64 * SEGMENT
"""Bytes that a sender may have in the link's queue: what a modem buffers."""


@dataclass
class SlowLink:
    """Listens on `port` once entered, and passes everything on to the broker."""

    host: str
    to: int
    delay: float
    loss: float
    bits: float
    seed: int = 0
    port: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __enter__(self) -> Self:
        self._draw = random.Random(self.seed)
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen(ready)))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _listen(self, ready: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, self.host, 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._over.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self.host, self.to)
        try:
            await asyncio.gather(
                self._one_way(reader, far_writer, up=True),
                self._one_way(far_reader, writer, up=False),
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            far_writer.close()

    async def _one_way(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool
    ) -> None:
        """Send segment by segment at the link's pace; another task delivers them in order."""
        wire: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_ON_THE_WAY // SEGMENT)
        delivery = asyncio.ensure_future(self._deliver(wire, writer))
        clear = self._loop.time()
        while data := await reader.read(SEGMENT):
            tries = 1
            while self._draw.random() < self.loss:
                tries += 1
            clear = max(clear, self._loop.time()) + tries * len(data) * 8 / self.bits
            await asyncio.sleep(clear - self._loop.time())
            self.bytes_up += len(data) * up
            self.bytes_down += len(data) * (not up)
            await wire.put((clear + self.delay + (tries - 1) * 2 * self.delay, data))
        await wire.put((0.0, b""))
        await delivery

    async def _deliver(
        self, wire: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        try:
            while (item := await wire.get())[1]:
                await asyncio.sleep(max(0.0, item[0] - self._loop.time()))
                writer.write(item[1])
                await writer.drain()
        except ConnectionError:  # the reader has gone; let the sending side come to its end
            while (await wire.get())[1]:
                pass
        writer.close()
