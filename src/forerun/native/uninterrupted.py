"""Native calls that Ctrl-C waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


def uninterrupted(call: Callable[[], int | None], discard: Callable[[int], None]) -> int | None:
    """What a native call returns, made on a thread of its own; KeyboardInterrupt is raised once it has ended.

    Python runs signal handlers in the main thread: were a native callback (llama.cpp's log) called there,
    KeyboardInterrupt would be raised before its first line, where nothing can catch it, and ctypes would drop it.
    `discard` frees what the call made and nobody will get.
    """
    # A queue, not Thread.join: a join that was interrupted takes the thread for ended.
    results: SimpleQueue[int | None] = SimpleQueue()

    def run() -> None:
        result = None
        try:
            result = call()
        finally:
            results.put(result)

    threading.Thread(target=run, name="forerun-native", daemon=True).start()
    try:
        return results.get()
    except BaseException:
        if (handle := results.get()) is not None:
            discard(handle)
        raise
