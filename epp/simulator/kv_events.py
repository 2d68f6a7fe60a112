"""
KV events on the wire: what an engine stores and removes, published as vLLM publishes it.

One publisher a data-parallel rank, each on a port of its own. A message is three frames: the topic,
a sequence number from 0, and one engine step's events in msgpack: as maps since vLLM 0.24, by
position before. Publishing is telling, not delivering: who subscribes late or reads slowly misses
messages and sees it by the sequence; the last of them can be had again from the replay socket. A
restarted engine begins at 0 again and says nothing of what it forgot.

Nothing here waits for a reader: a full queue drops messages, and a long replay lets others run. Nor
can anything here stop an engine: events that cannot be sent are counted, and missing to all.
"""

import asyncio
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Literal, Self

import msgspec
import zmq
import zmq.asyncio
from msgspec import Meta, structs

from epp.simulator.engine.block_hash import BlockHash, wire_hash
from epp.simulator.engine.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)

Encoding = Literal["map", "positional"]
HashFormat = Literal["int", "bytes"]

_Count = Annotated[int, Meta(ge=0, le=2**31 - 2)]
"""What ZeroMQ takes as a limit, with room for one more."""
_WireHash = int | bytes
_Message = tuple[bytes, bytes, bytes]
"""Topic, sequence, payload."""

_MEDIUM = "GPU"
_GROUP = 0
_ATTENTION = "full_attention"
_NEVER_BY_POSITION = {"kv_cache_spec_kind", "session_id"}
_SEQUENCE_BYTES = 8
_REPLAY_END: _Message = (b"", b"\xff" * _SEQUENCE_BYTES, b"")
_LAST_PORT = 65535
_FAILURES_A_LINE = 1000
_LOG = logging.getLogger(__name__)
_REPLAY_BURST = 16
"""How many messages of a replay go out before others may run: some 0.3 ms."""


class KVEventsConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """What vLLM takes as --kv-events-config, with its names and defaults."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    """None is `zmq` where events are enabled."""
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: _Count = 10_000
    """How many messages can be had again."""
    hwm: _Count = 100_000
    """How many messages wait for one slow reader before it misses some."""
    max_queue_size: _Count = 100_000
    """Taken and told, yet without use: there is no queue before the socket here."""
    topic: str = ""

    def __post_init__(self) -> None:
        if self.publisher is None:
            chosen = "zmq" if self.enable_kv_cache_events else "null"
            structs.force_setattr(self, "publisher", chosen)

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Read the flag's JSON; ValueError says what is wrong with it."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"--kv-events-config: {error}") from error

    @property
    def publishes(self) -> bool:
        """Whether events go out at all."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    def check_ports(self, ranks: int) -> None:
        """Raise ValueError where so many ranks have no ports."""
        for endpoint in (self.endpoint, self.replay_endpoint or ""):
            of_last = _of_rank(endpoint, ranks - 1)
            _, _, port = of_last.rpartition(":")
            if of_last.startswith("tcp://") and port.isdigit() and int(port) > _LAST_PORT:
                raise ValueError(
                    f"KV events of rank {ranks - 1} have no port at {of_last}: the last is"
                    f" {_LAST_PORT}"
                )

    def source(self, rank: int) -> dict[str, object]:
        """Return what a server tells of this rank's events."""
        replay = self.replay_endpoint
        moved = {
            "endpoint": _of_rank(self.endpoint, rank),
            "replay_endpoint": None if replay is None else _of_rank(replay, rank),
        }
        return {**structs.asdict(self), **moved}


class KVEventPublisher:
    """The events of one rank: published as they come, and the last of them again on request."""

    def __init__(
        self,
        config: KVEventsConfig,
        *,
        rank: int = 0,
        encoding: Encoding = "map",
        hashes: HashFormat = "int",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._rank = rank
        self._wire = _Wire(encoding, hashes)
        self._wall_clock = wall_clock
        self._topic = config.topic.encode()
        self._sequence = 0
        self.failures = 0
        """How many messages could not be sent to anybody."""
        self._buffer: deque[_Message] = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes] | zmq.asyncio.Socket] = []
        self._replay: zmq.asyncio.Socket | None = None
        self.replay_endpoint: str | None = None
        try:
            self._publisher = self._publish_at(config, rank)
            self.endpoint = self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)
            if config.replay_endpoint is not None:
                self._replay = self._replay_at(config.replay_endpoint, config.buffer_steps, rank)
                self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        except ValueError:
            self.close()
            raise

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Send what one step did, if it did anything."""
        if not events:
            return
        sequence = self._sequence.to_bytes(_SEQUENCE_BYTES, "big")
        self._sequence += 1
        try:
            payload = self._wire.encode(self._wall_clock(), events, self._rank)
            message = (self._topic, sequence, payload)
            self._buffer.append(message)
            # A socket of this kind drops what a reader has no room for; it never says: try again.
            self._publisher.send_multipart(message, zmq.NOBLOCK)
        except Exception as error:  # noqa: BLE001 - telling must not harm what is told of
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        """Count a message that is lost; the log has the first and then each thousandth."""
        if self.failures % _FAILURES_A_LINE == 0:
            _LOG.warning(
                "KV events of rank %d: a message is lost for %s, after %d others",
                self._rank,
                type(error).__name__,
                self.failures,
            )
        self.failures += 1

    async def run(self) -> None:
        """Answer who asks for messages again, until cancelled."""
        socket = self._replay
        if socket is None:
            return
        while True:
            request = await socket.recv_multipart()
            if len(request) == 3:  # who asks, an empty frame, the first sequence wanted
                await self._send_again(socket, request[0], int.from_bytes(request[2], "big"))

    def close(self) -> None:
        """Close the sockets; what is still on its way out is lost."""
        for socket in self._sockets:
            socket.close(linger=0)
        self._sockets.clear()
        self._context.term()

    async def _send_again(self, socket: zmq.asyncio.Socket, reader: bytes, first: int) -> None:
        start = bisect_left(self._buffer, first, key=_sequence_of)
        kept = list(islice(self._buffer, start, None))
        for count, message in enumerate([*kept, _REPLAY_END], start=1):
            await socket.send_multipart([reader, b"", *message], zmq.NOBLOCK)
            if count % _REPLAY_BURST == 0:
                await asyncio.sleep(0)

    def _publish_at(self, config: KVEventsConfig, rank: int) -> "zmq.Socket[bytes]":
        endpoint = _of_rank(config.endpoint, rank)
        socket = self._context.socket(zmq.PUB)
        self._sockets.append(socket)
        socket.set_hwm(config.hwm)
        # As in vLLM, who names no host in particular listens, and who names one calls there.
        if _listens(endpoint):
            _attach(socket.bind, endpoint, "listen for readers of KV events at")
        else:
            _attach(socket.connect, endpoint, "publish KV events to")
        return socket

    def _replay_at(self, endpoint: str, buffer_steps: int, rank: int) -> zmq.asyncio.Socket:
        socket = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        self._sockets.append(socket)
        socket.set_hwm(buffer_steps + 1)  # one whole replay fits
        _attach(socket.bind, _of_rank(endpoint, rank), "listen for replays of KV events at")
        return socket


def _sequence_of(message: _Message) -> int:
    return int.from_bytes(message[1], "big")


def _of_rank(endpoint: str, rank: int) -> str:
    """Return the endpoint of a rank: the ports of tcp count up from that of rank 0."""
    if rank == 0:
        return endpoint
    scheme, _, rest = endpoint.partition("://")
    if scheme != "tcp":
        return f"{endpoint}_dp{rank}"
    host, _, port = rest.rpartition(":")
    return f"tcp://{host}:{int(port) + rank}" if port.isdigit() else endpoint


def _listens(endpoint: str) -> bool:
    return endpoint.startswith(("ipc://", "inproc://")) or any(
        wildcard in endpoint for wildcard in ("*", "::", "0.0.0.0")
    )


def _attach(how: Callable[[str], object], endpoint: str, what_for: str) -> None:
    try:
        how(endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"cannot {what_for} {endpoint}: {error.strerror}") from error


class _Wire:
    """How a step's events are written."""

    def __init__(self, encoding: Encoding, hashes: HashFormat) -> None:
        self._positional = encoding == "positional"
        self._hash: Callable[[BlockHash], _WireHash] = wire_hash if hashes == "int" else bytes
        self._pack = msgspec.msgpack.Encoder().encode

    def encode(self, when: float, events: Sequence[CacheEvent], rank: int) -> bytes:
        """Return the message's payload."""
        fields = [self._fields(event) for event in events]
        if self._positional:
            return self._pack((when, [_by_position(event) for event in fields], rank))
        return self._pack((when, fields, rank))

    def _fields(self, event: CacheEvent) -> dict[str, object]:
        match event:
            case BlockStored():
                return self._stored(event)
            case BlockRemoved(block_hash):
                return {
                    "type": "BlockRemoved",
                    "block_hashes": [self._hash(block_hash)],
                    "medium": _MEDIUM,
                    "group_idx": _GROUP,
                }
            case AllBlocksCleared():
                return {"type": "AllBlocksCleared"}

    def _stored(self, event: BlockStored) -> dict[str, object]:
        adapter = event.adapter
        fields: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": [self._hash(block_hash) for block_hash in event.block_hashes],
            "parent_block_hash": None if event.parent is None else self._hash(event.parent),
            "token_ids": list(event.token_ids),
            "block_size": event.block_size,
            "lora_id": None if adapter is None else adapter.number,
            "medium": _MEDIUM,
            "lora_name": None if adapter is None else adapter.name,
            "extra_keys": event.extra_keys,
            "group_idx": _GROUP,
            "kv_cache_spec_kind": _ATTENTION,
        }
        if event.session_id is not None:
            fields["session_id"] = event.session_id
        return fields


def _by_position(fields: dict[str, object]) -> list[object]:
    """Return the values alone, without those of fields that are younger than the names."""
    return [value for name, value in fields.items() if name not in _NEVER_BY_POSITION]
