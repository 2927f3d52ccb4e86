"""`forerun run`: prompts in, answers out."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from forerun.cli.endings import SOME_FAILED, report
from forerun.cli.explain import Explained
from forerun.cli.figures import figures
from forerun.cli.options import ModelOptions, SamplingOptions
from forerun.cli.terminal import Terminal
from forerun.compose import Engine
from forerun.core.prompt import PromptLayout
from forerun.core.request import SamplingParams, Usage
from forerun.engine.output import Output
from forerun.errors import InvalidRequestError
from forerun.media.item import Media
from forerun.media.kind import why_unread
from forerun.media.parts import media_part
from forerun.media.reading import read_picture, read_sound


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    system: str | None
    images: Sequence[Path] = ()
    """Shown before each prompt."""
    recordings: Sequence[Path] = ()
    """Played before each prompt, behind the images."""
    raw: bool
    json: bool
    explains: bool
    """Show where each token came from."""
    verbose: bool


def run_prompts(model: ModelOptions, sampling: SamplingOptions, prompts: Sequence[str], options: RunOptions) -> None:
    """Answer the prompts as one batch; exits with 1 where some of several failed."""
    if options.raw and options.system is not None:
        raise typer.BadParameter("--system needs the chat template that --raw leaves out")
    if options.raw and (options.images or options.recordings):
        raise typer.BadParameter("--image and --audio need the chat template that --raw leaves out")
    params, config = sampling.params(), model.config()
    texts = read_prompts(prompts)
    shown: list[Media] = [*map(read_picture, options.images), *map(read_sound, options.recordings)]
    terminal = Terminal(verbose=options.verbose)
    with terminal.load(config) as engine:
        if options.system is not None and not engine.has_chat_template:
            name = engine.model_name
            raise InvalidRequestError("system", f"{name} has no chat template to put a system message into")
        for item in shown:
            if item.kind not in engine.media_kinds:
                raise InvalidRequestError(item.kind, why_unread(item.kind, engine.media_kinds))
        if config.synthetic_acceptance is not None:
            terminal.warn_synthetic()
        started = time.monotonic()
        asked = [_prompt(engine, text, options, shown) for text in texts]
        if len(texts) == 1 and not options.json:
            outputs = _stream(engine, asked[0], params, options, terminal)
        else:
            outputs = _batch(engine, asked, params, options, terminal)
        usages = [output.usage for output in outputs if output.usage is not None]
        if usages:
            terminal.note(figures(usages, time.monotonic() - started))
    if any(output.error is not None for output in outputs):
        raise typer.Exit(SOME_FAILED)


def read_prompts(prompts: Sequence[str]) -> list[str]:
    """The prompts, `-` replaced by standard input."""
    if prompts.count("-") > 1:
        raise typer.BadParameter("standard input (-) can be read only once")
    return [_standard_input() if prompt == "-" else prompt for prompt in prompts]


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("prompt", f"standard input is not UTF-8 at byte {error.start}") from None


def _prompt(engine: Engine, text: str, options: RunOptions, shown: Sequence[Media]) -> PromptLayout | str:
    """What the engine is given for a prompt; one that is empty goes as it is, to be refused like any bad prompt."""
    if (options.system is None and not shown) or not text:
        return text
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    parts = [media_part(item.kind, item) for item in shown]
    content = [*parts, {"type": "text", "text": text}] if parts else text
    return engine.chat_prompt([*system, {"role": "user", "content": content}])


def _stream(
    engine: Engine, prompt: PromptLayout | str, params: SamplingParams, options: RunOptions, terminal: Terminal
) -> list[Output]:
    """Print one answer as it is generated; returns its last piece."""
    layout = engine.prompt(prompt, raw=options.raw) if isinstance(prompt, str) else prompt
    last: list[Output] = []
    explained = Explained(terminal.output, engine.tokenizer.bytes_of) if options.explains else None
    with engine.stream(layout, params) as pieces:
        for piece in terminal.announced(pieces, layout.logical_tokens):
            terminal.write(piece.text if explained is None else explained.piece(piece))
            last = [piece]
    terminal.write("\n")
    if explained is not None:
        terminal.note(explained.legend())
    return last


def _batch(
    engine: Engine,
    prompts: Sequence[PromptLayout | str],
    params: SamplingParams,
    options: RunOptions,
    terminal: Terminal,
) -> list[Output]:
    """Print answers in order, each as soon as those before it are there; returns them."""
    answers: list[Output] = []
    with engine.generate(prompts, params, raw=options.raw) as outputs:
        for output in terminal.watched(in_order(outputs), f"answering {len(prompts)} prompts"):
            answers.append(output)
            if options.json:
                _print_json(output)
                continue
            terminal.note(f"[prompt {output.index + 1} of {len(prompts)}]")
            if output.error is not None:
                report(output.error)
            elif options.explains:
                explained = Explained(terminal.output, engine.tokenizer.bytes_of)
                typer.echo(explained.piece(output))
                terminal.note(explained.legend())
            else:
                typer.echo(output.text)
    return answers


def in_order(outputs: Iterable[Output]) -> Iterator[Output]:
    """Outputs in the order of their prompts, each as soon as those before it are there."""
    early: dict[int, Output] = {}
    next_index = 0
    for output in outputs:
        early[output.index] = output
        while next_index in early:
            yield early.pop(next_index)
            next_index += 1


def _print_json(output: Output) -> None:
    print(json.dumps(as_json(output), ensure_ascii=False), flush=True)  # noqa: T201  # standard output is the product


def as_json(output: Output) -> dict[str, Any]:
    """An output as plain values. `error` is there only where it failed, `is_synthetic` where the text is void."""
    result: dict[str, Any] = {"index": output.index, "text": output.text, "finish_reason": output.finish_reason}
    result["token_ids"] = list(output.token_ids)
    result["origins"] = [list(run) for run in output.origins]
    if output.logprobs is not None:
        result["logprobs"] = [dataclasses.asdict(entry) for entry in output.logprobs]
    result["usage"] = None if output.usage is None else _usage(output.usage)
    if output.is_synthetic:
        result["is_synthetic"] = True
    if output.error is not None:
        result["error"] = {"type": type(output.error).__name__, "message": str(output.error)}
    return result


def _usage(usage: Usage) -> dict[str, Any]:
    values = dataclasses.asdict(usage)
    values["mean_accepted_length"] = usage.mean_accepted_length
    values["tokens_per_step"] = usage.tokens_per_step
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}
