"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_serve import serving

README = Path(__file__).parent.parent / "README.md"


def python_block(word: str) -> str:
    """The README's Python block that holds a word."""
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if word in block]
    return str(block)


def run(script: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_scheduler_s_parts_work_on_their_own_and_load_no_native_library() -> None:
    checks = "import sys; print(shared, where, 'llama_cpp' in sys.modules)"
    expected = "PromptBoundary(logical_tokens=578, native_position=3) SpeculativePosition(target=3, draft=578) False"
    assert run(python_block("SequencePool") + checks).strip() == expected


@pytest.mark.model
def test_a_library_user_needs_five_lines() -> None:
    answer = run(python_block("SamplingParams(max_tokens=64)"))
    assert "sky" in answer
    assert "cached_tokens=0," in answer
    assert "output_tokens=64" in answer


@pytest.mark.model
def test_the_cache_does_what_the_readme_shows(tmp_path: Path) -> None:
    script = python_block("engine.cache")
    first, second = (run(script, HOME=str(tmp_path)) for _ in range(2))
    assert "CacheLookup(prompt_tokens=" in first
    assert "prompt tokens were reused: the prompt goes on otherwise" in first
    assert "What is ink" in first
    assert second.count("CacheLookup(prompt_tokens=") == 1, "a cleared cache directory is one to start with"


@pytest.mark.model
def test_the_server_answers_what_the_readme_sends() -> None:
    text = README.read_text()
    (curl,) = re.findall(r"```sh\n(curl .*?)```", text, re.DOTALL)
    with serving() as (_, address):
        here = {"http://127.0.0.1:8080": address}
        answer = subprocess.run(replaced(curl, here), shell=True, capture_output=True, timeout=120, check=True)
        assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 32
        printed = run(replaced(python_block("import OpenAI"), here))
        assert len(printed.split()) > 10, "an answer is printed; it is drawn, so nobody knows which"


def replaced(text: str, words: dict[str, str]) -> str:
    for word, other in words.items():
        assert word in text
        text = text.replace(word, other)
    return text
