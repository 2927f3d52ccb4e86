"""A radix tree over prompt segments: which owners share which prefix.

An edge is one text run or one whole media span. Every node knows the owners whose content passes through it. Looking a
prompt up costs its own length, not the number of owners.

        root
         |  text [1 2]                 owners {4, 7}
         |  media image-a              owners {4, 7}
        / \\
     [3]   [9 8 7]                     owners {4}   owners {7}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from forerun.core.prompt import MediaSpan, PromptBoundary, PromptLayout, PromptSegment, shared_length

_Key: TypeAlias = int | MediaSpan
_JOIN_LIMIT = 4096
"""A growing text edge is joined in place up to this many tokens, then continued in a child: appends stay cheap."""


class _Node:
    __slots__ = ("children", "end", "owners", "parent", "segment")

    def __init__(self, parent: _Node | None, segment: PromptSegment, owners: set[int]) -> None:
        self.parent = parent
        self.segment = segment
        self.children: dict[_Key, _Node] = {}
        self.owners = owners
        self.end: PromptBoundary = _after(parent.end if parent else PromptBoundary.START, segment)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Owners that hold, or will hold, a prompt up to `boundary`."""

    boundary: PromptBoundary
    owners: frozenset[int]


def _after(start: PromptBoundary, segment: PromptSegment) -> PromptBoundary:
    return PromptBoundary(
        start.logical_tokens + segment.logical_tokens, start.native_position + segment.native_positions
    )


def _key(segment: PromptSegment) -> _Key:
    return segment.media_span or int(segment.tokens[0])


def _cut(segment: PromptSegment, at: int) -> tuple[PromptSegment, PromptSegment]:
    return PromptSegment(segment.tokens[:at], None), PromptSegment(segment.tokens[at:], None)


def _match(edge: PromptSegment, segment: PromptSegment) -> int:
    """Logical tokens that an edge and a segment with the same key share."""
    return edge.logical_tokens if edge.is_media else shared_length(edge.tokens, segment.tokens)


class PrefixTree:
    """Content of sequences, by owner id. Pure bookkeeping, owned by the pool."""

    __slots__ = ("_leaves", "_root")

    def __init__(self) -> None:
        self._root = _Node(None, PromptSegment(np.empty(0, np.int32), None), set())
        self._leaves: dict[int, _Node] = {}

    def __contains__(self, owner: int) -> bool:
        return owner in self._leaves

    def end_of(self, owner: int) -> PromptBoundary:
        """The boundary at which an owner's content ends."""
        return self._leaves[owner].end

    def insert(self, owner: int, layout: PromptLayout) -> None:
        """Set an owner's content."""
        if owner in self._leaves:
            self.remove(owner)
        self._descend(self._root, list(layout.segments), owner)

    def extend(self, owner: int, segment: PromptSegment) -> None:
        """Append text to an owner's content."""
        leaf = self._leaves[owner]
        grows_in_place = (
            not leaf.children
            and len(leaf.owners) == 1
            and not leaf.segment.is_media
            and 0 < leaf.segment.logical_tokens < _JOIN_LIMIT
        )
        if grows_in_place:
            leaf.segment = _joined(leaf.segment, segment)
            leaf.end = _after(leaf.end, segment)
        else:
            self._descend(leaf, [segment], owner)

    def _descend(self, node: _Node, rest: list[PromptSegment], owner: int) -> None:
        node.owners.add(owner)
        rest = rest[::-1]
        while rest:
            segment = rest.pop()
            child = node.children.get(_key(segment))
            if child is None:
                child = _Node(node, segment, set())
                node.children[_key(segment)] = child
            else:
                shared = _match(child.segment, segment)
                if shared < child.segment.logical_tokens:
                    child = self._split(child, shared)
                if shared < segment.logical_tokens:
                    rest.append(_cut(segment, shared)[1])
            child.owners.add(owner)
            node = child
        self._leaves[owner] = node

    def _split(self, lower: _Node, at: int) -> _Node:
        """Cut a text edge; returns the new upper node. The lower one keeps its identity, so leaves stay right."""
        parent = lower.parent
        assert parent is not None
        head, tail = _cut(lower.segment, at)
        upper = _Node(parent, head, set(lower.owners))
        parent.children[_key(head)] = upper
        lower.parent, lower.segment = upper, tail
        upper.children[_key(tail)] = lower
        return upper

    def remove(self, owner: int) -> None:
        """Forget an owner."""
        node = self._leaves.pop(owner)
        while node.parent is not None:
            parent = node.parent
            node.owners.discard(owner)
            if not node.owners:
                del parent.children[_key(node.segment)]
            elif len(node.children) == 1:
                self._merge(node)
            node = parent
        node.owners.discard(owner)

    @staticmethod
    def _merge(node: _Node) -> None:
        """Join a text node with its only child where nobody's content ends between them."""
        (child,) = node.children.values()
        if child.segment.is_media or node.segment.is_media or child.owners != node.owners:
            return
        parent = node.parent
        assert parent is not None
        child.segment = _joined(node.segment, child.segment)
        child.parent = parent
        parent.children[_key(child.segment)] = child

    def match(self, prompt: PromptLayout) -> list[SharedPrefix]:
        """Shared prefixes along a prompt, deepest first; owners of a deeper one are left out of the shallower ones."""
        path: list[tuple[PromptBoundary, set[int]]] = []
        node = self._root
        rest = list(prompt.segments)[::-1]
        while rest:
            segment = rest.pop()
            child = node.children.get(_key(segment))
            if child is None:
                break
            shared = _match(child.segment, segment)
            start = node.end
            path.append((_after(start, segment) if segment.is_media else start.advance(shared), child.owners))
            if shared < child.segment.logical_tokens:
                break
            if shared < segment.logical_tokens:
                rest.append(_cut(segment, shared)[1])
            node = child
        return _deepest_first(path)

    def is_contained(self, owner: int, by: Iterable[int]) -> bool:
        """Whether the whole content of `owner` is a prefix of the content of one of `by`."""
        return any(other in self._leaves[owner].owners for other in by if other != owner)

    def check_integrity(self) -> None:
        """Raise AssertionError where owners, edges or leaves contradict each other."""
        _check_node(self._root)
        for owner, leaf in self._leaves.items():
            node: _Node | None = leaf
            while node is not None:
                assert owner in node.owners, f"owner {owner} is missing on its own path"
                node = node.parent
            assert all(owner not in child.owners for child in leaf.children.values()), "content goes on past its leaf"

    def __repr__(self) -> str:
        return f"PrefixTree({len(self._leaves)} owners)"


def _joined(head: PromptSegment, tail: PromptSegment) -> PromptSegment:
    return PromptSegment(np.concatenate((head.tokens, tail.tokens)), None)


def _deepest_first(path: Sequence[tuple[PromptBoundary, set[int]]]) -> list[SharedPrefix]:
    result: list[SharedPrefix] = []
    seen: frozenset[int] = frozenset()
    for boundary, owners in reversed(path):
        fresh = frozenset(owners) - seen
        if fresh:
            result.append(SharedPrefix(boundary, fresh))
            seen |= fresh
    return result


def _check_node(node: _Node) -> None:
    pending = [node]
    while pending:
        current = pending.pop()
        for key, child in current.children.items():
            assert child.parent is current
            assert _key(child.segment) == key
            assert child.owners, "a node without owners"
            assert child.owners <= current.owners
            assert child.end == _after(current.end, child.segment)
            pending.append(child)
