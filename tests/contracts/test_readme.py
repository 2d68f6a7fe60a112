"""What the README shows is what works: its configuration loads, its scorer conforms."""

import re
from pathlib import Path
from typing import Any

import pytest

from epp.config import loader
from epp.framework import EndpointView, Registry
from epp.testing import assert_conforms, endpoint, request

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str, holding: str) -> str:
    """The one code block of a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [one for one in blocks if holding in one]
    return str(found)


def test_the_configuration_loads() -> None:
    document = block("yaml", "kind: EndpointPickerConfig")

    built = loader.load(document.encode(), Registry())

    assert [weight for _, weight in built.profiles[0].scorers] == [2, 3]


def test_the_mistake_it_speaks_of_is_refused_with_these_words() -> None:
    document = block("yaml", "kind: EndpointPickerConfig").replace("Endpoints: 2", "Endpoints: two")

    with pytest.raises(loader.ConfigError) as refused:
        loader.load(document.encode(), Registry())

    assert str(refused.value) in " ".join(README.split())


def test_the_scorer_conforms_and_scores() -> None:
    names: dict[str, Any] = {}
    exec(block("python", "LabelScorer"), names)
    scorer = names["LabelScorer"](label="tier", value="large")
    pool = EndpointView([endpoint("a", labels={"tier": "large"}), endpoint("b")])

    assert_conforms(lambda: scorer)
    assert scorer.score(request(), pool) == [1.0, 0.0]


@pytest.mark.parametrize("target", re.findall(r"\]\(([\w/.-]+)\)", README))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("command", ["run", "test", "bench"])
def test_make_knows_the_commands(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert f"make {command}" in README
    assert re.search(rf"^{command}:", makefile, re.MULTILINE)
