"""The text behind which a grammar starts, found in tokens: it may be one token, several, or end inside of one."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.structured.tokens import TokenTable


class Marker:
    """Where a text ends for the first time. Immutable; any thread.

    tokens   ... | "</th" | "ink" | ">\\n{" |
    marker         "</think>"                    completed by the third token, which goes on with "\\n{"
    """

    def __init__(self, text: str, table: TokenTable) -> None:
        self._text = text.encode()
        self._pieces = table.pieces
        self._endings = _endings(self._text, table)

    def rest(self, before: Sequence[int], token: int) -> bytes | None:
        """What a token adds behind the marker's end; None where it does not complete the marker. `before`: the tokens
        before it, which hold no marker."""
        piece = self._pieces[token]
        tail = self._tail(before)
        at = (tail + piece).find(self._text)
        return None if at < 0 else (tail + piece)[at + len(self._text) :]

    def overshooting(self, before: Sequence[int]) -> list[tuple[int, bytes]]:
        """Tokens that would complete the marker and go on behind it, and with what."""
        tail = self._tail(before)
        return [
            (token, rest)
            for have, endings in self._endings.items()
            if not have or tail.endswith(self._text[:have])
            for token, rest in endings
        ]

    def _tail(self, before: Sequence[int]) -> bytes:
        """As much of the end of the text as the marker may begin in."""
        tail = b""
        wanted = len(self._text) - 1
        for token in reversed(before):
            if len(tail) >= wanted:
                break
            tail = self._pieces[token] + tail
        return tail[len(tail) - min(wanted, len(tail)) :]


def _endings(marker: bytes, table: TokenTable) -> dict[int, list[tuple[int, bytes]]]:
    """Tokens that go on behind the marker, by how much of it must stand before them; 0: all of it is in the token."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for token, piece in enumerate(table.pieces):
        at = piece.find(marker)
        if at >= 0 and len(piece) > at + len(marker):
            found.setdefault(0, []).append((token, piece[at + len(marker) :]))
    for have in range(1, len(marker)):
        rest = marker[have:]
        longer = [
            (token, piece[len(rest) :])
            for token, piece in enumerate(table.pieces)
            if len(piece) > len(rest) and piece.startswith(rest)
        ]
        if longer:
            found[have] = longer
    return found
