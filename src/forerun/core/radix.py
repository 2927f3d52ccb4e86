"""A radix tree over prompt segments: which sequences and which stored runs hold which prefix.

An edge is one text run or one whole media span. Every node knows the owners (sequence ids) whose content passes
through XX
        root
         |  text [1 2]                 owners {4, 7}    runs {r}
         |  media image-a              owners {4, 7}    runs {r}
        / \\
     [3]   [9 8 7]                     owners {4}       owners {7}, runs {s}: s goes on from r

There is one root for each scope: nothing is ever found under another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from forerun.core.prompt import MediaSpan, PromptBoundary, PromptLayout, PromptSegment, shared_length

_Key: TypeAlias = int | MediaSpan
R = TypeVar("R", bound=Hashable)
"""A stored run."""
_JOIN_LIMIT = 4096
"""A growing text edge is joined in place up to this many tokens, then continued in a child: appends stay cheap."""


class _Node(Generic[R]):
    __slots__ = ("children", "end", "owners", "parent", "runs", "segment")

    def __init__(
        self,
        parent: _Node[R] | None,
        segment: PromptSegment,
        owners: Set[int] = frozenset(),
        runs: Set[R] = frozenset(),
    ) -> None:
        self.parent = parent
        self.segment = segment
        self.children: dict[_Key, _Node[R]] = {}
        self.owners = set(owners)
        self.runs = dict.fromkeys(runs)  # in order: equal trees are looked through alike
        self.end: PromptBoundary = (parent.end if parent else PromptBoundary.START).behind([segment])


class Match(NamedTuple, Generic[R]):
    """Who holds how much of a prompt."""

    depth: int
    """Logical tokens."""
    owners: Set[int]
    runs: Set[R]
    """Those that cover the last of them."""


def _key(segment: PromptSegment) -> _Key:
    return segment.media_span or int(segment.tokens[0])


def _tail(segment: PromptSegment, at: int) -> PromptSegment:
    """What of a segment lies at and after `at`; media is never cut."""
    return segment if at == 0 else PromptSegment(segment.tokens[at:], None)


def _shared(edge: PromptSegment, segment: PromptSegment, at: int) -> int:
    """Logical tokens that an edge shares with a segment from `at` on, their keys being equal."""
    return edge.logical_tokens if edge.is_media else shared_length(edge.tokens, segment.tokens[at:])


class PrefixTree(Generic[R]):
    """Content of sequences, by owner id, and of stored runs. Pure bookkeeping."""

    __slots__ = ("_leaves", "_roots", "_run_ends", "_scopes")

    def __init__(self) -> None:
        self._roots: dict[str, _Node[R]] = {}
        self._scopes: dict[int, str] = {}
        """Of each owner."""
        self._leaves: dict[int, _Node[R]] = {}
        self._run_ends: dict[R, tuple[_Node[R], int, str]] = {}
        """Of each run: the node it ends with, the logical token it starts at, its scope."""

    def __contains__(self, owner: int) -> bool:
        return owner in self._leaves

    def end_of(self, owner: int) -> PromptBoundary:
        """The boundary at which an owner's content ends."""
        return self._leaves[owner].end

    # --- owners ----------------------------------------------------------

    def insert(self, owner: int, layout: PromptLayout, scope: str = "") -> None:
        """Set an owner's content."""
        if owner in self._leaves:
            self.remove(owner)
        self._scopes[owner] = scope
        root = self._root(scope)
        root.owners.add(owner)
        self._own(root, layout.segments, owner)

    def extend(self, owner: int, segment: PromptSegment) -> None:
        """Append text to an owner's content."""
        leaf = self._leaves[owner]
        grows_in_place = (
            not leaf.children
            and not leaf.runs
            and len(leaf.owners) == 1
            and not leaf.segment.is_media
            and 0 < leaf.segment.logical_tokens < _JOIN_LIMIT
        )
        if grows_in_place:
            leaf.segment = _joined(leaf.segment, segment)
            leaf.end = leaf.end.behind([segment])
        else:
            self._own(leaf, [segment], owner)

    def _own(self, node: _Node[R], segments: Iterable[PromptSegment], owner: int) -> None:
        for child in self._descend(node, segments):
            child.owners.add(owner)
            node = child
        self._leaves[owner] = node

    def remove(self, owner: int) -> None:
        """Forget an owner."""
        node = self._leaves.pop(owner)
        while node.parent is not None:
            parent = node.parent
            node.owners.discard(owner)
            self._tidy(node)
            node = parent
        node.owners.discard(owner)
        self._drop_empty_root(node, self._scopes.pop(owner))

    # --- runs ----------------------------------------------------------

    def place(self, run: R, content: Sequence[PromptSegment], start: int, after: R | None, scope: str = "") -> None:
        """Add a run that goes on from logical token `start` of the run `after`; None: from the start of a prompt."""
        node = self._root(scope) if after is None else self._node_at(self._run_ends[after][0], start)
        for child in self._descend(node, content):
            child.runs[run] = None
            node = child
        self._run_ends[run] = (node, start, scope)

    def displace(self, run: R) -> None:
        """Forget a run. Those that go on from it must have gone before."""
        node, start, scope = self._run_ends.pop(run)
        while node.parent is not None:
            parent = node.parent
            if node.end.logical_tokens > start:
                node.runs.pop(run, None)
            self._tidy(node)
            node = parent
        self._drop_empty_root(node, scope)

    def runs(self) -> Iterator[R]:
        return iter(self._run_ends)

    def _node_at(self, node: _Node[R], start: int) -> _Node[R]:
        """The node on the way to `node` that ends at a logical token; its edge is cut there if need be."""
        while node.parent is not None and node.parent.end.logical_tokens >= start:
            node = node.parent
        if node.end.logical_tokens == start:
            return node
        begin = node.parent.end.logical_tokens if node.parent else 0
        return self._split(node, start - begin)

    # --- nodes ----------------------------------------------------------

    def _root(self, scope: str) -> _Node[R]:
        root = self._roots.get(scope)
        if root is None:
            root = self._roots[scope] = _Node(None, PromptSegment(np.empty(0, np.int32), None))
        return root

    def _drop_empty_root(self, root: _Node[R], scope: str) -> None:
        if not root.owners and not root.children:
            del self._roots[scope]

    def _descend(self, node: _Node[R], segments: Iterable[PromptSegment]) -> Iterator[_Node[R]]:
        """The nodes along segments from a node on; made, and edges cut, where there are none."""
        for segment in segments:
            at = 0
            while at < segment.logical_tokens:
                key = segment.media_span or int(segment.tokens[at])
                child = node.children.get(key)
                if child is None:
                    child = node.children[key] = _Node(node, _tail(segment, at))
                else:
                    shared = _shared(child.segment, segment, at)
                    if shared < child.segment.logical_tokens:
                        child = self._split(child, shared)
                at += child.segment.logical_tokens
                yield child
                node = child

    def _split(self, lower: _Node[R], at: int) -> _Node[R]:
        """Cut a text edge; returns the new upper node. The lower one keeps its identity, so leaves stay right."""
        parent = lower.parent
        assert parent is not None
        head, tail = PromptSegment(lower.segment.tokens[:at], None), _tail(lower.segment, at)
        upper: _Node[R] = _Node(parent, head, lower.owners, lower.runs.keys())
        parent.children[_key(head)] = upper
        lower.parent, lower.segment = upper, tail
        upper.children[_key(tail)] = lower
        return upper

    def _tidy(self, node: _Node[R]) -> None:
        """Drop a node that nobody needs any more, or join it with its only child."""
        parent = node.parent
        assert parent is not None
        if not node.owners and not node.runs:
            del parent.children[_key(node.segment)]
        elif len(node.children) == 1:
            self._merge(node)

    @staticmethod
    def _merge(node: _Node[R]) -> None:
        """Join a text node with its only child where nobody's content ends or begins between them."""
        (child,) = node.children.values()
        if child.segment.is_media or node.segment.is_media or child.owners != node.owners or child.runs != node.runs:
            return
        parent = node.parent
        assert parent is not None
        child.segment = _joined(node.segment, child.segment)
        child.parent = parent
        parent.children[_key(child.segment)] = child

    # --- looking up ----------------------------------------------------------

    def match(self, prompt: PromptLayout, scope: str = "") -> Iterator[Match[R]]:
        """Who shares how much of a prompt, deepest first.

        Owners of a deeper match are among those of the shallower ones too; stop where the rest cannot be better.
        """
        path, depth = self._walk(prompt, scope)
        for node in reversed(path):
            yield Match(min(depth, node.end.logical_tokens), node.owners, node.runs.keys())

    def continuation(self, prompt: PromptLayout, scope: str, most: int) -> tuple[int, tuple[int, ...]]:
        """How many tokens of a prompt anybody shares, and up to `most` text tokens with which one of those goes on."""
        path, depth = self._walk(prompt, scope)
        if not path:
            return 0, ()
        node = path[-1]
        begin = node.parent.end.logical_tokens if node.parent else 0
        tokens = node.segment.tokens[depth - begin :].tolist()
        while node.children and len(tokens) < most:
            node = next(iter(node.children.values()))
            if node.segment.is_media:
                break
            tokens += node.segment.tokens.tolist()
        return depth, tuple(tokens[:most])

    def _walk(self, prompt: PromptLayout, scope: str) -> tuple[list[_Node[R]], int]:
        """Nodes along a prompt, and how many logical tokens of it they share."""
        path: list[_Node[R]] = []
        node, depth = self._roots.get(scope), 0
        if node is None:
            return path, depth
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
        """Raise AssertionError where owners, runs, edges or leaves contradict each other."""
        for root in self._roots.values():
            _check_node(root)
        for owner, leaf in self._leaves.items():
            _check_way(leaf, owner)
            assert all(owner not in child.owners for child in leaf.children.values()), "content goes on past its leaf"
        for run, (end, start, _) in self._run_ends.items():
            node = end
            while node.end.logical_tokens > start:
                assert run in node.runs, f"run {run} is missing on its own path"
                assert node.parent is not None
                node = node.parent
            assert node.end.logical_tokens == start, f"run {run} begins inside an edge"
            assert all(run not in child.runs for child in end.children.values()), "a run goes on past its end"

    def __repr__(self) -> str:
        return f"PrefixTree({len(self._leaves)} owners, {len(self._run_ends)} runs)"


def _joined(head: PromptSegment, tail: PromptSegment) -> PromptSegment:
    return PromptSegment(np.concatenate((head.tokens, tail.tokens)), None)


def _check_way(node: _Node[R] | None, owner: int) -> None:
    while node is not None:
        assert owner in node.owners, f"owner {owner} is missing on its own path"
        node = node.parent


def _check_node(node: _Node[R]) -> None:
    pending = [node]
    while pending:
        current = pending.pop()
        for key, child in current.children.items():
            assert child.parent is current
            assert _key(child.segment) == key
            assert child.owners or child.runs, "a node that nobody needs"
            assert child.owners <= current.owners
            assert child.end == current.end.behind([child.segment])
            pending.append(child)
