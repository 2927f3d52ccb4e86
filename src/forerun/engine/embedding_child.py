"""The process of an embedding engine: `python -m forerun.engine.embedding_child FD PID`.

It computes one batch after the other, as it is told, and remembers nothing: the queue is the front end's
(`embedding.py`), which ends this process by force.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from forerun.engine import messages
from forerun.engine.child_start import begin, built
from forerun.engine.connection import Connection
from forerun.engine.embedding import Embedder
from forerun.engine.messages import Command, Embed, Embedded, EmbedderReady, Failed
from forerun.errors import EngineError, ForerunError


def main(arguments: Sequence[str]) -> int:
    """Serve the front end at the other end of a socket until it is gone."""
    begun = begin(arguments)
    if begun is None:
        return 1
    connection, start = begun
    try:
        embedder: Embedder = built(start, lambda report: connection.send(messages.encode(report)))
    except ForerunError as error:
        connection.send(messages.encode(Failed(messages.wire_error(error))))
        return 1
    serve(embedder, connection)
    return 0


def serve(embedder: Embedder, connection: Connection[Command]) -> None:
    """Compute what is asked until nobody asks any more."""
    ready = EmbedderReady(embedder.n_ctx, embedder.max_inputs, embedder.max_batch_tokens, embedder.dimensions)
    connection.send(messages.encode(ready))
    while isinstance(command := connection.receive(), Embed):
        connection.send(messages.encode(_embedded(embedder, command)))


def _embedded(embedder: Embedder, command: Embed) -> Embedded:
    """What came of a batch. Whatever is no EngineError ends the process: nobody foresaw what it left behind."""
    try:
        vectors = embedder.embed([np.frombuffer(tokens, np.int32) for tokens in command.inputs])
    except EngineError as error:
        return Embedded(b"", messages.wire_error(error))
    return Embedded(vectors.astype(np.float32).tobytes())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
