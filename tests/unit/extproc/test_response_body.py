"""Bodies on their way back: the client's own name for the model, wherever the pieces are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.response_body import ModelRenamer


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ('{"id":"1","model":"vllm-01","choices":[]}', '{"id":"1","model":"gpt","choices":[]}'),
        ('data: {"model":"vllm-01"}\n\n', 'data: {"model":"gpt"}\n\n'),
        ('{"model": "vllm-01"}', '{"model": "gpt"}'),
        ('{"id":"1","choices":[]}', '{"id":"1","choices":[]}'),
        ("data: [DONE]\n", "data: [DONE]\n"),
        ('{"model":"vllm-011"}', '{"model":"vllm-011"}'),
    ],
    ids=["json", "event", "blank", "absent", "done", "longer-name"],
)
def test_the_client_sees_the_name_it_asked_for(sent: str, expected: str) -> None:
    renamer = ModelRenamer("vllm-01", "gpt")

    assert expected == renamer.feed(sent.encode(), last=True).decode()


@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_the_name_is_found_wherever_the_pieces_are_cut(cuts: list[int]) -> None:
    data = b'data: {"model":"m-1"}\n\ndata: {"model": "m-1"}\n\ndata: "mod'
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    renamer = ModelRenamer("m-1", "asked")
    parts = [data[a:b] for a, b in pairwise(edges)]

    sent = b"".join(renamer.feed(part, last=at == len(parts) - 1) for at, part in enumerate(parts))

    assert sent == b'data: {"model":"asked"}\n\ndata: {"model": "asked"}\n\ndata: "mod'


def test_only_what_may_be_the_beginning_of_the_name_waits() -> None:
    renamer = ModelRenamer("m-1", "asked")

    assert renamer.feed(b'data: {"id":1,"mod', last=False) == b'data: {"id":1,'
    assert renamer.feed(b'ify":2}', last=False) == b'"modify":2}'


def test_a_name_with_quotes_is_compared_as_json_writes_it() -> None:
    renamer = ModelRenamer('a"b', "c")

    assert renamer.feed(b'{"model":"a\\"b"}', last=True) == b'{"model":"c"}'
