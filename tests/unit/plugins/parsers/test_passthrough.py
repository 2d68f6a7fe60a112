"""The fallback: it reads next to nothing, changes nothing and refuses nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import ParsedRequest
from epp_plugins.parsers.passthrough import PassthroughParser

AUDIO = bytes(range(256)) * 4000


def parse(body: bytes, content_type: str = "multipart/form-data; boundary=cut") -> ParsedRequest:
    headers = {"content-type": content_type}
    return PassthroughParser().parse_request("/v1/audio/transcriptions", headers, body)


def part(disposition: str, value: bytes, *further: str) -> bytes:
    head = "\r\n".join(["--cut", f"Content-Disposition: form-data; {disposition}", *further])
    return head.encode() + b"\r\n\r\n" + value + b"\r\n"


MODEL = part('name="model"', b"whisper")
FILE = part('name="file"; filename="a.wav"', AUDIO, "Content-Type: audio/wav")
END = b"--cut--\r\n"


def test_it_claims_no_path() -> None:
    assert list(PassthroughParser().claims) == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"model":"m","prompt":"x"}', b"\xff\xfe", AUDIO], ids=range(5)
)
@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/form-data", "x"])
def test_of_any_body_nothing_is_known(body: bytes, content_type: str) -> None:
    parsed = parse(body, content_type)

    assert ParsedRequest() == parsed


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(MODEL + FILE + END, id="first"),
        pytest.param(FILE + MODEL + END, id="behind-a-file"),
        pytest.param(part("name=model", b"whisper") + END, id="unquoted"),
        pytest.param(
            part('name="model"', b"whisper", "Content-Type: text/plain") + END, id="with-a-type"
        ),
        pytest.param(b"preamble\r\n" + MODEL + END, id="behind-a-preamble"),
        pytest.param(
            b'--cut\r\nX-Any: 1\r\ncontent-disposition:form-data; name="model"\r\n\r\nwhisper'
            b"\r\n--cut--",
            id="other-headers-before-and-lower-case",
        ),
    ],
)
def test_a_form_names_its_model_in_a_field(body: bytes) -> None:
    assert parse(body).model == "whisper"


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=cut",
        'multipart/form-data; boundary="cut"',
        "Multipart/Form-Data; charset=utf-8; Boundary=cut; x=y",
    ],
)
def test_the_boundary_is_found_in_any_spelling(content_type: str) -> None:
    assert parse(MODEL + END, content_type).model == "whisper"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(FILE + END, id="no-such-field"),
        pytest.param(part('name="model"; filename="m"', b"whisper") + END, id="a-file-named-so"),
        pytest.param(part('name="model_id"', b"whisper") + END, id="another-field"),
        pytest.param(part('name="prompt"', MODEL[5:]) + END, id="text-that-looks-like-a-field"),
        pytest.param(part('name="model"', b"") + END, id="an-empty-name"),
        pytest.param(part('name="model"', b"x" * 300) + END, id="a-name-too-long"),
        pytest.param(MODEL.rstrip(), id="a-body-that-is-cut-off"),
        pytest.param(part('name="x"', b"") * 100 + MODEL + END, id="too-many-parts-before"),
        pytest.param(b"--cut\r\n" + b"a: b\r\n" * 100 + MODEL[7:] + END, id="too-many-headers"),
    ],
)
def test_a_form_without_a_plain_model_field_is_routed_by_load(body: bytes) -> None:
    assert parse(body).model is None


@settings(deadline=None)
@given(
    pieces=st.lists(
        st.binary(max_size=20)
        | st.sampled_from([b"--cut", b"\r\n", b"\r\n\r\n", b'form-data; name="model"', MODEL, FILE])
    )
)
def test_no_form_is_ever_refused(pieces: list[bytes]) -> None:
    parsed = parse(b"".join(pieces))

    assert parsed.prompt == b""


def test_a_rewrite_leaves_the_body_as_it_is() -> None:
    assert PassthroughParser().rewrite_model(MODEL + FILE, "other") == MODEL + FILE


def test_responses_have_no_usage() -> None:
    assert PassthroughParser().parse_usage(b'{"usage":{"prompt_tokens":1}}') is None
