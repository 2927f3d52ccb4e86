"""`forerun serve` with several models: what is given is which models, and a process loads and unloads them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import psutil
import pytest

from forerun.cli.options import EngineOptions
from forerun.cli.serve_models import models_to_serve
from forerun.cli.serve_options import ServeOptions
from forerun.compose_models import ToServe
from forerun.errors import InvalidConfigError
from tests.cli.conftest import Forerun
from tests.conftest import MakeTinyModel
from tests.support.tiny_adapters import TinyAdapter, build_adapter
from tests.support.tiny_models import TinyModel

PATIENCE = 60.0
CUT = signal.SIGTERM


def to_serve(model: str | None = None, models: list[str] | None = None, **engine: Any) -> list[ToServe]:
    return models_to_serve(ServeOptions(model, models), EngineOptions(**engine))


def test_a_model_alone_is_loaded_at_once_under_the_name_of_its_file() -> None:
    (one,) = to_serve("models/small.gguf", draft="tiny.gguf", n_ctx=512)
    assert (one.id, one.config.draft, one.config.n_ctx, one.is_loaded_at_once) == ("small", "tiny.gguf", 512, True)


def test_further_models_have_their_names_and_are_loaded_when_asked_for() -> None:
    small, coder, plain = to_serve("small.gguf", ["coder=big.gguf", "x/plain.gguf"], n_ctx=512)
    assert [one.id for one in (small, coder, plain)] == ["small", "coder", "plain"]
    assert [one.is_loaded_at_once for one in (small, coder, plain)] == [True, False, False]
    assert (coder.config.model, plain.config.model) == ("big.gguf", "x/plain.gguf")
    assert coder.config.n_ctx == 512


def test_options_for_one_model_are_for_the_first() -> None:
    options = ServeOptions("small.gguf", ["b=big.gguf"], alias=["gpt"], chat_format="hermes", record=Path("new.jsonl"))
    of_one = EngineOptions(draft="tiny.gguf", mmproj="mmproj.gguf", chat_template="a.jinja")
    first, second = models_to_serve(options, of_one)
    assert (first.config.draft, first.config.chat_template, first.aliases) == ("tiny.gguf", "a.jinja", ("gpt",))
    assert (first.chat_format, second.chat_format) == ("hermes", "auto")
    assert (second.config.draft, second.config.chat_template, second.aliases) == (None, None, ())
    assert (first.config.projector, second.config.projector) == ("mmproj.gguf", None)
    assert first.config.record is not None
    assert second.config.record is None


def test_adapters_belong_to_the_model_they_name_or_to_the_first() -> None:
    given = ["sql=sql.gguf", "b:law=law.gguf", "c:x=odd.gguf"]
    first, second = to_serve("a.gguf", ["b=big.gguf"], adapter=given)
    assert dict(first.config.adapters) == {"sql": "sql.gguf", "c:x": "odd.gguf"}
    assert dict(second.config.adapters) == {"law": "law.gguf"}


@pytest.mark.parametrize(
    ("models", "engine", "said"),
    [
        ([], {}, "model: there is none: give MODEL, or --model NAME=MODEL"),
        (["a="], {}, "model: NAME=MODEL, for instance small=smollm2, got 'a='"),
        (["=x.gguf"], {}, "model: a name has no spaces around it and is not empty, got ''"),
        ([" a=x.gguf"], {}, "model: a name has no spaces around it and is not empty, got ' a'"),
        (["a=x", "b=y"], {"draft": "tiny"}, "draft: is for one model, and several are served"),
        (["a=x", "b=y"], {"mmproj": "file"}, "mmproj: is for one model, and several are served"),
        (["a=x", "b=y"], {"chat_template": "t"}, "chat-template: is for one model, and several are served"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(models: list[str], engine: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(said)):
        to_serve(None, models, **engine)


@pytest.mark.model
def test_one_of_several_models_that_cannot_be_loaded_is_told_before_the_server_starts(
    forerun: Forerun, tiny_dense_path: Path, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing.gguf")
    result = forerun("serve", "--port", "0", "--model", f"a={tiny_dense_path}", "--model", f"b={missing}")
    assert (result.exit_code, "Traceback" in result.stderr) == (2, False)
    assert missing in result.stderr


@contextmanager
def serving(*options: str) -> Iterator[tuple[psutil.Process, httpx.Client]]:
    """The process and a client of it, once it is ready."""
    command = [sys.executable, "-m", "forerun", "serve", "--port", "0", "--log-format", "off", *options]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        stream, found = process.stderr, Queue[str]()

        def read() -> None:
            for line in stream:
                if ready := re.search(r" ready at (http://\S+)", line):
                    found.put(ready[1])
            found.put("")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            address = found.get(timeout=PATIENCE)
            assert address, "the server ended before it was ready"
            with httpx.Client(base_url=address, timeout=PATIENCE) as client:
                yield psutil.Process(process.pid), client
        finally:
            process.kill()
            process.wait()
            reader.join(PATIENCE)


def engines_of(server: psutil.Process) -> list[psutil.Process]:
    return [child for child in server.children() if "forerun.engine.child" in child.cmdline()]


@pytest.mark.model
def test_two_models_take_turns_in_memory_and_case_k2_an_adapter_has_prefixes_of_its_own(
    tiny_dense_path: Path, tiny_model: MakeTinyModel
) -> None:
    other = tiny_model(TinyModel(seed=1))
    adapter = build_adapter(TinyAdapter(seed=1, gain=2.0), tiny_dense_path)
    models = ("--model", f"a={tiny_dense_path}", "--model", f"b={other}", "--adapter", f"a:law={adapter}")
    with serving(*models, "--max-loaded", "1", "--n-ctx", "512", "--threads", "1") as (process, client):

        def ask(model: str) -> tuple[str, int]:
            body = {"model": model, "prompt": [5, 6, 7, 8] * 16, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body).json()
            assert answer["model"] == model
            return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert engines_of(process) == []
        plain, cached = ask("a")
        assert cached == 0
        adapted, cached = ask("a:law")
        assert cached == 0
        assert adapted != plain
        assert ask("a:law") == (adapted, 63)
        assert ask("a") == (plain, 63)
        (first,) = engines_of(process)

        assert ask("b")[0] not in (plain, adapted)
        (second,) = engines_of(process)
        assert first != second
        assert not first.is_running()

        process.send_signal(CUT)
        process.wait(PATIENCE)
        assert not second.is_running()
