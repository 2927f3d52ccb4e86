"""Compiles grammars in a process that may die of it. Started by `checking.py`; speaks lines of JSON.

Standard input: a pickled TokenTable, then a grammar a line. Standard output: a line when it is ready, then one for each
grammar: what is wrong with it, or null.
"""

from __future__ import annotations

import json
import os
import pickle
import sys

from forerun.core.grammar import Grammar, GrammarKind
from forerun.errors import InvalidRequestError
from forerun.structured.rehearsal import rehearse
from forerun.structured.tokens import Tokens

MAX_MEMORY = 4 * 2**30
"""Bytes of address space, much of which is never touched."""
_POLITE = 5


def main() -> None:
    _limit_self()
    incoming, outgoing = sys.stdin.buffer, sys.stdout
    tokens = Tokens(pickle.load(incoming))
    print("ready", file=outgoing, flush=True)
    for line in incoming:
        print(json.dumps(_verdict(line, tokens)), file=outgoing, flush=True)


def _limit_self() -> None:
    """Less memory, no core dumps, and after the engine where the processor is short."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_POLITE)


def _verdict(line: bytes, tokens: Tokens) -> str | None:
    kind, text, after = json.loads(line)
    try:
        rehearse(Grammar(GrammarKind(kind), text, after), tokens)
    except InvalidRequestError as error:
        return error.reason
    except MemoryError:
        return "takes too much memory to compile; make it simpler"
    return None


if __name__ == "__main__":
    main()
