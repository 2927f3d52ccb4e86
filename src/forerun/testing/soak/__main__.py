"""`python -m forerun.testing.soak`: the fake model, or a real one with `--model`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from forerun.core.memory import MemoryKind
from forerun.testing.soak.fake import fake_subject
from forerun.testing.soak.run import Soak
from forerun.testing.soak.subject import SoakError, Subject

_KINDS = {"dense": MemoryKind(), "window": MemoryKind(window=12), "state": MemoryKind(has_state=True)}


def main(arguments: list[str] | None = None) -> int:
    """0 where nobody was lost but culprits, 1 where something was seen that must not be."""
    options = _parser().parse_args(arguments)
    subject = _subject(options)
    until = time.monotonic() + 60 * options.minutes
    try:
        summary = Soak(subject, options.seed).run(lambda _: time.monotonic() < until)
    except AssertionError as error:
        sys.stderr.write(f"soak: {type(error).__name__}: {error}\n")
        if not isinstance(error, SoakError):
            raise
        return 1
    finally:
        subject.close()
    sys.stdout.write("\n".join(summary.lines()) + "\n")
    if options.output is not None:
        options.output.write_text(json.dumps(summary.figures(), indent=2) + "\n", encoding="utf-8")
    return 0 if summary.is_good else 1


def _subject(options: argparse.Namespace) -> Subject:
    if options.model is None:
        return fake_subject(options.seed, options.faults, _KINDS[options.kind])
    from forerun.testing.soak.real import real_subject

    return real_subject(options.model, options.seed, options.faults, draft=options.draft, breaks_calls=options.calls)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forerun.testing.soak",
        description="Arrivals, cancels, pressure and faults on one engine; everything is looked at after each step.",
        epilog="Example: python -m forerun.testing.soak --minutes 10 --seed 1 --model smollm2",
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long requests arrive (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of requests and faults (default: 1)")
    parser.add_argument("--faults", type=float, default=0.01, metavar="SHARE", help="of steps struck (default: 0.01)")
    parser.add_argument("--model", help="a GGUF file or a packaged model's name (default: the fake model)")
    parser.add_argument("--draft", help="a draft model for it (default: none, drafts come from texts)")
    parser.add_argument("--calls", action="store_true", help="break its native calls, 1%% of those, instead of steps")
    parser.add_argument("--kind", choices=sorted(_KINDS), default="dense", help="memory of the fake model")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the figures here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
