"""How a DNS name becomes one address, and how steady that is."""

from collections.abc import Iterable

import pytest

from epp_plugins.discoveries.static_file.address_book import AddressBook


class Names:
    """A resolver that knows what it is told; a name that it does not know cannot be looked up."""

    def __init__(self, **known: Iterable[str]) -> None:
        self.known = dict(known)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Iterable[str]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError(-2, "Name or service not known")
        return self.known[host]


async def test_an_address_is_kept_while_the_name_still_has_it() -> None:
    names = Names(vllm=["10.0.0.5"])
    book = AddressBook(names)
    kept = []
    for addresses in (["10.0.0.5"], ["10.0.0.1", "10.0.0.5"], ["10.0.0.1", "10.0.0.3"]):
        names.known["vllm"] = addresses
        await book.refresh(["vllm"])
        kept.append(book.address("vllm"))

    assert kept == ["10.0.0.5", "10.0.0.5", "10.0.0.1"]


@pytest.mark.parametrize("now", [None, []], ids=["cannot be looked up", "has no addresses"])
async def test_a_name_that_is_lost_keeps_its_address_and_is_reported_once(
    now: list[str] | None,
) -> None:
    names = Names(vllm=["10.0.0.5"])
    book = AddressBook(names)
    reports = [await book.refresh(["vllm"])]
    if now is None:
        del names.known["vllm"]
    else:
        names.known["vllm"] = now
    reports += [await book.refresh(["vllm"]) for _ in range(2)]
    names.known["vllm"] = ["10.0.0.6"]
    reports.append(await book.refresh(["vllm"]))

    assert [sorted(report) for report in reports] == [[], ["vllm"], [], []]
    assert book.address("vllm") == "10.0.0.6"


async def test_a_name_that_nobody_asks_for_is_forgotten() -> None:
    book = AddressBook(Names(vllm=["10.0.0.5"]))
    await book.refresh(["vllm", "10.0.0.1"])
    await book.refresh(["10.0.0.1"])

    assert (book.address("vllm"), book.address("10.0.0.1")) == (None, "10.0.0.1")


async def test_ipv4_comes_before_ipv6_and_numbers_in_their_order() -> None:
    book = AddressBook(Names(vllm=["fd00::1", "10.0.0.10", "10.0.0.9"]))
    await book.refresh(["vllm"])

    assert book.address("vllm") == "10.0.0.9"
