"""
Tables of what a client may not do: how a row is played, and what has to come of it.

Beside the stream that offends, a witness is open: an error of a stream leaves it working, an error
of the connection takes it along.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hyperframe.frame import GoAwayFrame

from epp.extproc.h2.call import Call, Handler
from epp.extproc.h2.frames import ErrorCode
from support import h2_frames as f
from support.h2_peer import Echo, Peer

WITNESS = 1


@dataclass(frozen=True)
class Row:
    """What a client sends, and the error it is."""

    section: str
    """Of RFC 9113."""
    what: str
    sent: bytes
    code: ErrorCode
    stream: int = 0
    """The stream that the error costs; 0 where it costs the connection."""
    limits: Mapping[str, int] = field(default_factory=dict)
    serve: Callable[[Call], Handler | None] = Echo
    greeted: bool = True
    before: int = 0
    """How many errors of streams lead to that of the connection."""


def parametrised(*rows: Row) -> Any:
    """Play each row as one piece and byte by byte."""
    params = [
        pytest.param(row, pieces, id=f"{row.section}: {row.what}{how}")
        for row in rows
        for how, pieces in (("", 1), (", byte by byte", len(row.sent)))
    ]
    return pytest.mark.parametrize(("row", "pieces"), params)


def play(row: Row, pieces: int) -> Peer:
    """Return a peer that has done what the row says."""
    peer = Peer(greeted=row.greeted, serve=row.serve, **row.limits)
    if row.greeted:
        peer.send(f.headers(WITNESS))
    size = -(-len(row.sent) // pieces)
    for start in range(0, len(row.sent), size):
        peer.send(row.sent[start : start + size])
    return peer


def check(row: Row, peer: Peer) -> None:
    """Assert that the error was told to the peer and to us, and cost what it should."""
    *before, last = [(one.code, one.stream_id) for one in peer.violations]
    assert (row.code, row.stream) == last
    assert row.before == len(before)
    assert all(stream for _, stream in before)
    if row.stream:
        _check_stream(row, peer)
    else:
        _check_connection(row, peer)


def _check_stream(row: Row, peer: Peer) -> None:
    assert [row.code] == peer.resets(row.stream)
    assert row.stream not in peer.connection.calls
    assert row.stream not in peer.handlers or peer.handlers[row.stream].over
    assert not peer.connection.closing
    assert peer.goaways() == []
    assert not peer.handlers[WITNESS].over
    handler = peer.handlers[WITNESS]
    peer.send(f.data(WITNESS, f.message(b"still here"), end=True))
    assert handler.messages[0] == b"still here"
    assert len(peer.violations) == 1


def _check_connection(row: Row, peer: Peer) -> None:
    assert isinstance(peer.told[-1], GoAwayFrame)
    assert [row.code] == [code for _, code in peer.goaways()]
    assert peer.told[-1].additional_data.decode() == peer.violations[-1].what
    assert peer.connection.closing
    assert peer.connection.calls == {}
    assert all(one.over for one in peer.handlers.values())
    assert not row.greeted or peer.handlers[WITNESS].over == "cancelled"
    assert peer.send(f.ping(), f.headers(99)) == []
