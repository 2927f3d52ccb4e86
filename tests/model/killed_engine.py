"""An engine that answers the same prompts again and again until somebody kills it: python -m tests.model.killed_engine.

Arguments: the model and the cache directory. Each answer is a line of JSON, with the seconds since the start.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from forerun import Engine, SamplingParams
from tests.model.serving import some_tokens, usage_of

PROMPTS = [some_tokens(150 + 60 * index, seed=index) for index in range(6)]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def main(model: str, cache_dir: str) -> None:
    started = time.monotonic()
    with Engine.load(Path(model), n_ctx=2048, n_threads=1, cache_ram=2**28, cache_dir=cache_dir) as engine:
        for round_ in range(10_000):
            fresh = some_tokens(400, seed=1000 + round_ + time.time_ns() % 10**6)
            for output in engine.generate([*PROMPTS, fresh], PARAMS):
                if output.index < len(PROMPTS):
                    usage = usage_of(output)
                    line = {
                        "round": round_,
                        "prompt": output.index,
                        "tokens": output.token_ids,
                        "disk": usage.cached_disk_tokens,
                        "at": time.monotonic() - started,
                    }
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
