"""Drafters plugged in: the documented one works as it stands, and what is wrong with another is said in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from forerun import Drafter, DrafterContext, DraftRequest, InvalidConfigError, Proposal, SamplingParams
from forerun.core.config import SchedulerConfig
from forerun.core.lookups import own_lookups
from forerun.plugins import OWN_NAMES, find_factory, make_drafter
from forerun.testing import FakeVocabulary
from tests.cli.conftest import FakeBuild, Forerun, fake_build, forerun
from tests.core.harness import Harness
from tests.core.test_never_slower import GPU
from tests.core.test_never_slower_texts import PROMPT, ScriptedRunner

__all__ = ["fake_build", "forerun"]  # fixtures of the command line's tests

BYTES = FakeVocabulary([bytes([index]) if index < 256 else b"" for index in range(500)], end_tokens=())
CONTEXT = DrafterContext(vocabulary=BYTES, n_ctx=4096)
PAGE = Path(__file__).parent.parent / "docs" / "drafters.md"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_drafters.py").write_text(
        "class Nameless:\n    def propose(self, requests):\n        return []\n"
        "class Named(Nameless):\n    def __init__(self, name='mine'):\n        self.name = name\n"
        "def raises():\n    raise KeyError('no table')\n"
        "def makes_nothing():\n    return None\n"
        "def wants(context):\n    return Named(f'with_{context.n_ctx}')\n"
        "number = 5\n"
    )
    (tmp_path / "broken_drafters.py").write_text("import no_such_thing_at_all\n")
    return tmp_path


def make(given: object) -> Drafter:
    return make_drafter(find_factory(given), CONTEXT)


def test_the_documented_drafter_works_as_it_stands(modules: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (modules / "boilerplate.py").write_text(script)
    text = list(b"Yes. Permission is hereby granted, free of charge, to any person who asks.")
    config = SchedulerConfig(n_ctx=4096, max_num_seqs=1, speculation=8)
    lookups = [*own_lookups(config), make("boilerplate:make")]
    harness = Harness(config, ScriptedRunner([text], GPU), BYTES, lookups)
    harness.add("a", [0] * PROMPT, SamplingParams(max_tokens=len(text)))
    harness.run()
    assert harness.tokens("a") == tuple(text)
    drafted, accepted = harness.usage("a").drafters["boilerplate"]
    assert accepted >= 45
    assert drafted - accepted <= 16
    assert len(harness.plans) < len(text) / 2


def test_the_page_names_every_name_that_is_taken() -> None:
    listed = PAGE.read_text().split("**Names**")[1]
    assert set(re.findall(r"`(\w+)`", listed)) - {"name"} == OWN_NAMES


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", sorted(OWN_NAMES))
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"drafter: the name '{name}' is taken"):
        make(lambda: __import__("odd_drafters").Named(name))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("odd_drafters", "drafter: is 'module:factory', got 'odd_drafters'"),
        (":make", "drafter: is 'module:factory', got ':make'"),
        ("no_such_module:make", "drafter: module 'no_such_module' could not be imported: ModuleNotFoundError"),
        ("broken_drafters:make", "could not be imported: ModuleNotFoundError: No module named 'no_such_thing_at_all'"),
        ("odd_drafters:make", "drafter: module 'odd_drafters' has no 'make'"),
        ("odd_drafters:number", "drafter: 'odd_drafters:number' is no factory: 5 cannot be called"),
        ("odd_drafters:raises", "drafter: factory raises raised KeyError: 'no table'"),
        ("odd_drafters:makes_nothing", "made None, which has no method propose(requests)"),
        ("odd_drafters:Nameless", "made a drafter whose name is no identifier: None"),
        (7, "drafter: is 'module:factory', a factory or a drafter, got 7"),
    ],
)
@pytest.mark.usefixtures("modules")
def test_what_is_wrong_is_said_in_one_line(given: object, words: str) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        make(given)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.field == "drafter"


@pytest.mark.usefixtures("modules")
def test_a_drafter_comes_from_a_name_a_factory_a_class_or_as_it_is() -> None:
    class Mine:
        name = "mine"

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return [Proposal() for _ in requests]

    drafter = Mine()
    assert make(drafter) is drafter
    assert make(lambda: drafter) is drafter
    assert make(Mine).name == make("odd_drafters:Named").name == "mine"
    assert make("odd_drafters:wants").name == "with_4096"


def test_the_command_line_passes_it_on(forerun: Forerun, fake_build: FakeBuild) -> None:
    result = forerun("run", "fake", "ab", "--max-tokens", "3", "--drafter", "my_drafter:make")
    assert result.exit_code == 0
    (config,) = fake_build.configs
    assert config.drafter == "my_drafter:make"
    assert config.drafts_by_gain
