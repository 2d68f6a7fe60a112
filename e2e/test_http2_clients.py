"""
HTTP/2 clients that know nothing of gRPC, nghttp2's own, and one that does not even speak HTTP/2.

`apt-get install nghttp2-client` brings them; CI does that.
"""

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from stack import Picker

CHECK = "/grpc.health.v1.Health/Check"
HEADERS = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
PROTOCOL_ERROR = b"\0\0\0\1"
GOAWAY = 7

needs_nghttp = pytest.mark.skipif(
    shutil.which("nghttp") is None or shutil.which("h2load") is None,
    reason="nghttp and h2load are not here: apt-get install nghttp2-client",
)


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A file with an empty HealthCheckRequest in the framing of gRPC: no compression, no length."""
    path = tmp_path / "question.bin"
    path.write_bytes(bytes(5))
    return path


def url(picker: Picker, *, secure: bool) -> str:
    return f"{'https' if secure else 'http'}://127.0.0.1:{picker.ports.grpc}{CHECK}"


async def said(*argv: str) -> str:
    """Run a command; return what it says, on either of its outputs."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode()


@needs_nghttp
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_nghttp_is_told_of_health(
    pickers: dict[bool, Picker], question: Path, secure: bool
) -> None:
    address = url(pickers[secure], secure=secure)

    trace = await said("nghttp", "-v", "-y", *HEADERS, "-d", str(question), address)

    assert re.search(r"recv .*:status: 200", trace), trace
    assert re.search(r"recv .*grpc-status: 0", trace), trace
    assert "error_code=NO_ERROR" in trace or "error_code" not in trace


@needs_nghttp
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_two_thousand_questions_of_h2load_are_all_answered(
    pickers: dict[bool, Picker], question: Path, secure: bool
) -> None:
    address = url(pickers[secure], secure=secure)
    load = ["-n", "2000", "-c", "4", "-m", "50", "-T", "30", "-N", "30"]

    report = await said("h2load", *load, *HEADERS, "-d", str(question), address)

    assert "2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored" in report
    assert "status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx" in report


async def test_http_1_is_shown_the_door_and_counted(
    all_pickers: dict[str, dict[bool, Picker]],
) -> None:
    picker = all_pickers["lean"][False]
    counted = {"scope": "connection", "code": "PROTOCOL_ERROR"}
    before = await picker.metric("epp_http2_violations_total", **counted)

    reader, writer = await asyncio.open_connection("127.0.0.1", picker.ports.grpc)
    writer.write(b"GET / HTTP/1.1\r\nhost: picker\r\nconnection: keep-alive\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    after = await picker.metric("epp_http2_violations_total", **counted)

    (goaway,) = re.findall(rb"\0.{2}%c\0\0\0\0\0(.{8})" % GOAWAY, answer, re.DOTALL)
    assert goaway == bytes(4) + PROTOCOL_ERROR
    assert after == before + 1
    assert picker.child.process.returncode is None
