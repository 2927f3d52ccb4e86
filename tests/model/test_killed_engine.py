"""kill -9 under load: every restart serves, hits what was written before, and answers as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forerun.native.model import LlamaModel
from tests.conftest import MakeTinyModel
from tests.model.killed_engine import PROMPTS
from tests.support.greedy_eq import GreedyOracle
from tests.support.tiny_models import TinyModel

pytestmark = pytest.mark.model

_WRITTEN = 1.5
"""Seconds after which an answered prompt is safely on disk."""


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_every_restart_after_kill_9_serves_and_hits_what_was_written(
    kills: int, tiny_model: MakeTinyModel, tmp_path: Path
) -> None:
    path, rng = tiny_model(TinyModel()), random.Random(kills)
    model = LlamaModel.load(path)
    oracle = GreedyOracle(model, n_ctx=2048)
    written: set[int] = set()
    for _ in range(kills):
        lines = _until_killed(path, tmp_path / "cache", rng.uniform(0.05, 2.5) if written else 2 * _WRITTEN)
        for line in lines:
            assert oracle.faults(PROMPTS[line["prompt"]], line["tokens"]) == []
            if line["round"] == 0 and line["prompt"] in written:
                assert line["disk"] >= len(PROMPTS[line["prompt"]]) - 1
        end = max((line["at"] for line in lines), default=0.0)
        written |= {line["prompt"] for line in lines if line["at"] < end - _WRITTEN}
    assert written, "nothing was answered early enough to be written"
    oracle.close()
    model.close()


def _until_killed(model: Path, cache: Path, seconds: float) -> list[dict[str, Any]]:
    """What an engine answers in the seconds after its first answer, before it is killed."""
    command = [sys.executable, "-m", "tests.model.killed_engine", str(model), str(cache)]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        assert first, "the engine did not start"
        time.sleep(seconds)
        child.kill()
        rest = child.stdout.read()
    whole = [line for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole]
