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

from collections.abc import Iterable, Iterator, Set
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


def _after(start: PromptBoundary, segment: PromptSegment) -> PromptBoundary:
    return PromptBoundary(
        start.logical_tokens + segment.logical_tokens, start.native_position + segment.native_positions
    )


def _key(segment: PromptSegment) -> _Key:
    return segment.media_span or int(segment.tokens[0])


def _tail(segment: PromptSegment, at: int) -> PromptSegment:
    """What of a segment lies at and after `at`; media is never cut."""
    return segment if at == 0 else PromptSegment(segment.tokens[at:], None)


def _shared(edge: PromptSegment, segment: PromptSegment, at: int) -> int:
    """Logical tokens that an edge shares with a segment from `at` on, their keys being equal."""
    return edge.logical_tokens if edge.is_media else shared_length(edge.tokens, segment.tokens[at:])


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
        self._descend(self._root, layout.segments, owner)

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

    def _descend(self, node: _Node, segments: Iterable[PromptSegment], owner: int) -> None:
        node.owners.add(owner)
        for segment in segments:
            at = 0
            while at < segment.logical_tokens:
                key = segment.media_span or int(segment.tokens[at])
                child = node.children.get(key)
                if child is None:
                    child = _Node(node, _tail(segment, at), set())
                    node.children[key] = child
                else:
                    shared = _shared(child.segment, segment, at)
                    if shared < child.segment.logical_tokens:
                        child = self._split(child, shared)
                child.owners.add(owner)
                at += child.segment.logical_tokens
                node = child
        self._leaves[owner] = node

    def _split(self, lower: _Node, at: int) -> _Node:
        """Cut a text edge; returns the new upper node. The lower one keeps its identity, so leaves stay right."""
        parent = lower.parent
        assert parent is not None
        head, tail = PromptSegment(lower.segment.tokens[:at], None), _tail(lower.segment, at)
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

    def match(self, prompt: PromptLayout) -> Iterator[tuple[int, Set[int]]]:
        """Who shares how much of a prompt: (logical tokens, owners), deepest first.

        Owners of a deeper match are among those of the shallower ones too; stop where the rest cannot be better.
        """
        path, depth = self._walk(prompt)
        for node in reversed(path):
            yield min(depth, node.end.logical_tokens), node.owners

    def _walk(self, prompt: PromptLayout) -> tuple[list[_Node], int]:
        """Nodes along a prompt, and how many logical tokens of it they share."""
        node, depth = self._root, 0
        path: list[_Node] = []
        for segment in prompt.segments:
            at = 0
            while at < segment.logical_tokens:
                child = node.children.get(segment.media_span or int(segment.tokens[at]))
                if child is None:
                    return path, depth
                shared = _shared(child.segment, segment, at)
                path.append(child)
                depth += shared
                if shared < child.segment.logical_tokens:
                    return path, depth
                at += shared
                node = child
        return path, depth

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
