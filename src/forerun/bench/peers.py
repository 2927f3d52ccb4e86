"""How the servers that are compared are started, each with the same model, context, threads and sequences.

A system is named as `NAME` or `NAME:VARIANT`: `forerun:off` drafts nothing, `llama-server:batch/128` reads prompts in
pieces of 128. What is not said here is as the server's makers left it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, Final

from forerun.errors import BenchmarkError

_HOST: Final = "127.0.0.1"
_ALIAS: Final = "model"
_NO_END_BIAS: Final = -1000.0
_BUILD: Final = "tools/build_llama_server.sh FOLDER builds it, then --peers FOLDER"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers are given."""

    model: Path
    draft: Path | None = None
    n_ctx: int = 8192
    """Tokens of all sequences together."""
    sequences: int = 8
    """Requests that run at a time."""
    threads: int = 2
    peers: Path | None = None
    """The folder that tools/build_llama_server.sh fills."""
    llama_server: Path | None = None
    """Another binary than the one in that folder."""
    end_tokens: tuple[int, ...] = ()
    """Banned where a server knows no `ignore_eos`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What starts a server."""

    name: str
    command: tuple[str, ...]
    version: str
    model: str = _ALIAS
    """What requests call the model."""
    ready: str = "/health"
    """Answers with 200 once the model is loaded."""
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request."""


_Launcher = Callable[[Setup, str, int, Path], Launch]
"""From the setup, the variant, the port, and a folder for files of its own."""


def launch_of(system: str, setup: Setup, port: int, folder: Path) -> Launch:
    """Raises BenchmarkError for a system that there is not, or that is not here."""
    name, _, variant = system.partition(":")
    launcher = PEERS.get(name)
    if launcher is None:
        raise BenchmarkError(f"--compare: there is no server {name!r}, but {', '.join(PEERS)}")
    return launcher(setup, variant, port, folder)


def _forerun(setup: Setup, variant: str, port: int, folder: Path) -> Launch:
    del folder
    options = {"": (), "off": ("--speculation", "off"), "auto": ("--speculation", "auto")}
    if variant not in options:
        raise BenchmarkError(f"--compare: forerun has no variant {variant!r}, but off and auto")
    draft = () if setup.draft is None or variant == "off" else ("--draft", str(setup.draft))
    command = (
        *(sys.executable, "-m", "forerun", "serve", str(setup.model), "--host", _HOST, "--port", str(port)),
        *("--alias", _ALIAS, "--n-ctx", str(setup.n_ctx), "--threads", str(setup.threads)),
        *("--max-num-seqs", str(setup.sequences), "--log-format", "off", *draft, *options[variant]),
    )
    return Launch(_named("forerun", variant), command, f"forerun {version('forerun')}")


def _llama_server(setup: Setup, variant: str, port: int, folder: Path) -> Launch:
    del folder
    binary = setup.llama_server or (setup.peers / "llama-server" if setup.peers is not None else None)
    if binary is None or not binary.exists():
        raise BenchmarkError(f"llama-server is not at {binary or 'any --peers folder'}: {_BUILD}")
    command = (
        *(str(binary), "--model", str(setup.model), "--alias", _ALIAS, "--host", _HOST, "--port", str(port)),
        *("--ctx-size", str(setup.n_ctx), "--parallel", str(setup.sequences), "--kv-unified"),
        *("--threads", str(setup.threads), "--metrics", *_llama_variant(setup, variant)),
    )
    told = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    built = " ".join((told.stdout + told.stderr).split())
    return Launch(_named("llama-server", variant), command, built)


def _llama_variant(setup: Setup, variant: str) -> tuple[str, ...]:
    """`batch/N`, `draft`, or a kind of n-gram speculation, `ngram-simple` or with sizes `ngram-simple/12/48`."""
    name, *sizes = variant.split("/")
    if not name:
        return ()
    if name == "batch" and len(sizes) == 1:
        return ("--batch-size", sizes[0], "--ubatch-size", sizes[0])
    if name == "draft" and setup.draft is not None:
        return ("--model-draft", str(setup.draft), "--spec-type", "draft-simple")
    if name.startswith("ngram-"):
        lengths = zip((f"--spec-{name}-size-n", f"--spec-{name}-size-m"), sizes, strict=False)
        return ("--spec-type", name, *(part for pair in lengths for part in pair))
    raise BenchmarkError(
        f"--compare: llama-server has no variant {variant!r}, but batch/N, ngram-simple/N/M (and other kinds),"
        " and draft with --draft"
    )


def _llama_wheel(setup: Setup, variant: str, port: int, folder: Path) -> Launch:
    del folder
    environment = _with_site(setup)
    settings = {
        "model": str(setup.model),
        "port": port,
        "n_ctx": setup.n_ctx,
        "sequences": setup.sequences,
        "threads": setup.threads,
        "variant": variant,
    }
    command = (sys.executable, "-m", "forerun.bench.xllamacpp_server", json.dumps(settings))
    return Launch(_named("llama-server-wheel", variant), command, _wheel_version(setup), environment=environment)


def _wheel_version(setup: Setup) -> str:
    site = [] if setup.peers is None else [str(setup.peers / "site")]
    found = next(iter(distributions(name="xllamacpp", path=[*site, *sys.path])), None)
    if found is None:
        raise BenchmarkError(
            f"xllamacpp is not here: `pip install --target {site[0] if site else 'PEERS/site'} xllamacpp`"
        )
    return f"xllamacpp {found.version} (any x86-64)"


def _llama_cpp_python(setup: Setup, variant: str, port: int, folder: Path) -> Launch:
    program = None if setup.peers is None else setup.peers / "source" / "examples" / "server" / "server.py"
    if program is None or not program.exists():
        raise BenchmarkError(f"llama-cpp-python's server is not at {program or 'any --peers folder'}: {_BUILD}")
    model: dict[str, Any] = {
        "path": str(setup.model),
        "alias": _ALIAS,
        "n_ctx": setup.n_ctx,
        "n_seq_max": setup.sequences,
        "threads": setup.threads,
        "threads_batch": setup.threads,
        # As in the configurations that come with it:
        "n_batch": 512,
        "n_ubatch": 512,
        "kv_unified": True,
        "store_logits": False,
    }
    if variant == "lookup":
        model["draft_model"] = "prompt-lookup-decoding"
    elif variant == "draft" and setup.draft is not None:
        model["draft_model_path"] = str(setup.draft)
    elif variant:
        raise BenchmarkError(
            f"--compare: llama-cpp-python has no variant {variant!r}, but lookup, and draft with --draft"
        )
    config = folder / f"llama-cpp-python-{port}.json"
    config.write_text(json.dumps({"server": {"host": _HOST, "port": port}, "model": model}))
    return Launch(
        _named("llama-cpp-python", variant),
        (sys.executable, str(program), "-C", str(config)),
        f"llama-cpp-python {version('llama-cpp-python')}, examples/server",
        ready="/healthz",
        environment=_with_site(setup),
        extra={"logit_bias": {str(token): _NO_END_BIAS for token in setup.end_tokens}},
    )


def _with_site(setup: Setup) -> dict[str, str]:
    """Packages of the --peers folder come after those that are installed."""
    if setup.peers is None:
        return {}
    before = os.environ.get("PYTHONPATH")
    site = str(setup.peers.absolute() / "site")
    return {"PYTHONPATH": f"{before}{os.pathsep}{site}" if before else site}


def _named(name: str, variant: str) -> str:
    return f"{name}:{variant}" if variant else name


PEERS: Final[dict[str, _Launcher]] = {
    "forerun": _forerun,
    "llama-server": _llama_server,
    "llama-server-wheel": _llama_wheel,
    "llama-cpp-python": _llama_cpp_python,
}
