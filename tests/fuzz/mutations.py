"""
Mutations: a valid connection made invalid, a little or altogether.
"""

from collections.abc import Callable
from random import Random

import hpack

from epp.extproc.h2 import frames
from fuzz.conversations import Frame, message

NUMBERS = [0, 1, 2, 3, 5, 8, 9, 255, 16_383, 16_384, 16_385, 65_535, (1 << 24) - 1]
WORDS = [0, 1, 2, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
ODD_FIELDS = [
    ("grpc-timeout", "1n"),
    ("grpc-timeout", "x"),
    ("grpc-encoding", "gzip"),
    ("content-length", "5"),
    ("content-length", "-1"),
    ("te", "gzip"),
    ("connection", "close"),
    (":path", "/"),
    (":status", "200"),
    ("Upper", "case"),
    ("x", "\r\n"),
    ("x" * 5_000, "y" * 5_000),
    ("content-type", "text/html"),
    (":method", "GET"),
]
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/x"), (":authority", "x")]


class Mutator:
    """Makes cases of valid connections; all chance is the `rng`'s."""

    def __init__(self, rng: Random, others: list[list[Frame]]) -> None:
        self._rng = rng
        self._others = others
        self._ways: list[Callable[[list[Frame]], list[Frame]]] = [
            self._cut,
            self._splice,
            self._duplicate,
            self._reorder,
            self._lie_about_length,
            self._other_kind,
            self._other_flags,
            self._other_stream,
            self._flip_payload,
            self._flip_message,
            self._insert,
            self._insert,
            self._random_payload,
            self._pad,
            self._fragment,
            self._fragment,
            self._end_by_trailers,
            self._repeat_often,
        ]

    def case(self, made: list[Frame]) -> bytes:
        """Return the bytes of a connection, mutated a few times, or bytes of pure chance."""
        rng = self._rng
        if rng.random() < 0.02:
            return self._chance()
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8])):
            made = rng.choice(self._ways)(made)
        data = frames.PREFACE + b"".join(one.encoded() for one in made)
        if rng.random() < 0.1:
            data = self._flipped(data)
        if rng.random() < 0.05:
            data = data[: rng.randrange(len(data) + 1)]
        return data

    def _chance(self) -> bytes:
        rng = self._rng
        begin = [b"", frames.PREFACE, frames.PREFACE + frames.settings({})]
        begin.append(b"GET / HTTP/1.1\r\n\r\n")
        return rng.choice(begin) + rng.randbytes(rng.choice([0, 10, 1_000, 30_000]))

    def _at(self, made: list[Frame]) -> int:
        return self._rng.randrange(len(made)) if made else 0

    def _changed(self, made: list[Frame], change: Callable[[Frame], Frame]) -> list[Frame]:
        if not made:
            return made
        at = self._at(made)
        return [*made[:at], change(made[at]), *made[at + 1 :]]

    def _flipped(self, data: bytes) -> bytes:
        flipped = bytearray(data)
        for _ in range(self._rng.randrange(1, 5)):
            if flipped:
                flipped[self._rng.randrange(len(flipped))] ^= 1 << self._rng.randrange(8)
        return bytes(flipped)

    def _cut(self, made: list[Frame]) -> list[Frame]:
        start = self._at(made)
        return made[:start] + made[start + self._rng.randrange(1, 4) :]

    def _splice(self, made: list[Frame]) -> list[Frame]:
        other = self._rng.choice(self._others)
        return made[: self._at(made)] + other[self._at(other) :]

    def _duplicate(self, made: list[Frame]) -> list[Frame]:
        start = self._at(made)
        end = start + self._rng.randrange(1, 6)
        return made[:end] + made[start:end] + made[end:]

    def _reorder(self, made: list[Frame]) -> list[Frame]:
        start = self._at(made)
        middle = made[start : start + self._rng.randrange(2, 8)]
        self._rng.shuffle(middle)
        return made[:start] + middle + made[start + len(middle) :]

    def _lie_about_length(self, made: list[Frame]) -> list[Frame]:
        def change(one: Frame) -> Frame:
            near = max(0, len(one.payload) + self._rng.randrange(-3, 4))
            return one._replace(length=self._rng.choice([near, *NUMBERS]))

        return self._changed(made, change)

    def _other_kind(self, made: list[Frame]) -> list[Frame]:
        return self._changed(made, lambda one: one._replace(kind=self._rng.randrange(12)))

    def _other_flags(self, made: list[Frame]) -> list[Frame]:
        flag = 1 << self._rng.randrange(8)
        return self._changed(made, lambda one: one._replace(flags=one.flags ^ flag))

    def _other_stream(self, made: list[Frame]) -> list[Frame]:
        known = [one.stream_id for one in made]
        choices = [0, 1, 2, 3, 99, (1 << 31) - 1, (1 << 32) - 1, *known]
        return self._changed(made, lambda one: one._replace(stream_id=self._rng.choice(choices)))

    def _flip_payload(self, made: list[Frame]) -> list[Frame]:
        return self._changed(made, lambda one: one._replace(payload=self._flipped(one.payload)))

    def _flip_message(self, made: list[Frame]) -> list[Frame]:
        """Change what is in a message, and leave its length as it is."""

        def change(one: Frame) -> Frame:
            if one.kind != frames.DATA:
                return one
            return one._replace(payload=one.payload[:5] + self._flipped(one.payload[5:]))

        for _ in range(3):
            made = self._changed(made, change)
        return made

    def _random_payload(self, made: list[Frame]) -> list[Frame]:
        size = self._rng.choice([*NUMBERS[:9], 2_000])
        return self._changed(made, lambda one: one._replace(payload=self._rng.randbytes(size)))

    def _pad(self, made: list[Frame]) -> list[Frame]:
        padding = self._rng.randrange(256)
        shown = self._rng.choice([padding, padding, 255])

        def change(one: Frame) -> Frame:
            payload = bytes((shown,)) + one.payload + bytes(padding)
            return one._replace(flags=one.flags | frames.PADDED, payload=payload)

        return self._changed(made, change)

    def _fragment(self, made: list[Frame]) -> list[Frame]:
        """Have field blocks continued, mostly as they may be."""
        fragmented: list[Frame] = []
        for one in made:
            fragmented.append(one)
            while (last := fragmented[-1]).kind in (frames.HEADERS, frames.CONTINUATION):
                if self._rng.random() < 0.4:
                    break
                at = self._rng.randrange(len(last.payload) + 1)
                flags = last.flags & ~frames.END_HEADERS
                fragmented[-1] = last._replace(flags=flags, payload=last.payload[:at])
                rest = last.flags & frames.END_HEADERS
                more = Frame(frames.CONTINUATION, rest, last.stream_id, last.payload[at:])
                fragmented.append(more)
        return fragmented

    def _end_by_trailers(self, made: list[Frame]) -> list[Frame]:
        if not made:
            return made
        after = self._at(made)
        fields = self._rng.choice([[], [("x-end", "1")], [(":path", "/")]])
        flags = frames.END_HEADERS | frames.END_STREAM
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
        trailers = Frame(frames.HEADERS, flags, made[after].stream_id, block)
        return [*made[: after + 1], trailers, *made[after + 1 :]]

    def _repeat_often(self, made: list[Frame]) -> list[Frame]:
        if not made:
            return made
        at = self._at(made)
        return made[:at] + [made[at]] * self._rng.choice([10, 200]) + made[at:]

    def _insert(self, made: list[Frame]) -> list[Frame]:
        rng = self._rng
        ids = [0, 1, 3, 5, *[one.stream_id for one in made]]
        stream_id = rng.choice(ids)
        word = rng.choice(WORDS).to_bytes(4)
        setting = rng.randrange(9).to_bytes(2) + word
        new = (max(ids) + 2 | 1) & frames.MAX_STREAM_ID
        odd = Frame(frames.HEADERS, rng.choice([4, 5]), new, self._odd_fields())
        choices = [
            odd,
            odd,
            Frame(frames.CONTINUATION, rng.choice([0, 4]), stream_id, self._odd_fields()),
            Frame(frames.HEADERS, rng.choice([0, 4, 5]), stream_id, self._odd_fields()),
            Frame(frames.SETTINGS, 0, 0, setting * rng.randrange(4)),
            Frame(frames.WINDOW_UPDATE, 0, stream_id, word),
            Frame(frames.RST_STREAM, 0, stream_id, word),
            Frame(frames.PING, rng.randrange(2), 0, rng.choice([b"draining", bytes(8)])),
            Frame(frames.GOAWAY, 0, 0, word + word),
            Frame(frames.PRIORITY, 0, stream_id, bytes(5)),
            Frame(frames.DATA, rng.randrange(2), stream_id, message(b"", rng.randrange(3))),
            Frame(frames.DATA, 0, stream_id, b"\0" + word + rng.randbytes(20)),
            Frame(rng.randrange(256), rng.randrange(256), stream_id, rng.randbytes(10)),
        ]
        at = self._at(made)
        return [*made[:at], rng.choice(choices), *made[at:]]

    def _odd_fields(self) -> bytes:
        fields = [*REQUEST]
        for _ in range(self._rng.randrange(3)):
            fields.insert(self._rng.randrange(len(fields) + 1), self._rng.choice(ODD_FIELDS))
        return hpack.Encoder().encode(fields)


def _text(value: str) -> bytes:
    return bytes((len(value),)) + value.encode()
