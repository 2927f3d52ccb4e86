"""The radix tree, against a dict of layouts that is searched from end to end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forerun.core import radix
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.radix import PrefixTree
from tests.core.strategies import layouts, token_ids

owners = st.integers(0, 5)


Matches = list[tuple[int, frozenset[int]]]
"""Shared logical tokens and who shares just so many, deepest first."""


def naive_match(contents: dict[int, PromptLayout], prompt: PromptLayout) -> Matches:
    shared = {owner: layout.common_prefix(prompt).logical_tokens for owner, layout in contents.items()}
    depths = sorted({depth for depth in shared.values() if depth}, reverse=True)
    return [(depth, frozenset(owner for owner, its in shared.items() if its == depth)) for depth in depths]


def match(tree: PrefixTree[str], prompt: PromptLayout, scope: str = "") -> Matches:
    seen: set[int] = set()
    result: Matches = []
    for depth, owners, _ in tree.match(prompt, scope):
        fresh = frozenset(owners - seen)
        assert owners >= seen, "owners of a deeper match are among those of a shallower one"
        if fresh:
            result.append((depth, fresh))
        seen |= fresh
    return result


class TreeAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree: PrefixTree[str] = PrefixTree()
        self.runs: dict[str, tuple[PromptLayout, int, str | None]] = {}
        """Of each run: all that lies before its end, where it starts, and the run it goes on from."""
        self.contents: dict[int, PromptLayout] = {}

    @rule(owner=owners, layout=layouts)
    def insert(self, owner: int, layout: PromptLayout) -> None:
        self.tree.insert(owner, layout)
        self.contents[owner] = layout

    @rule(owner=owners, data=st.data(), tail=layouts)
    @precondition(lambda self: self.contents)
    def insert_beside_another(self, owner: int, data: st.DataObject, tail: PromptLayout) -> None:
        other = self.contents[data.draw(st.sampled_from(sorted(self.contents)))]
        cut = other.boundary_at_or_after(data.draw(st.integers(0, other.logical_tokens)))
        assert cut is not None
        self.insert(owner, other.prefix(cut).extended(tail.segments))

    @rule(data=st.data(), tokens=st.lists(token_ids, min_size=1, max_size=6))
    @precondition(lambda self: self.contents)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        owner = data.draw(st.sampled_from(sorted(self.contents)))
        segment = PromptSegment.text(tokens)
        self.tree.extend(owner, segment)
        self.contents[owner] = self.contents[owner].extended([segment])

    @rule(data=st.data())
    @precondition(lambda self: self.contents)
    def remove(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.contents)))
        self.tree.remove(owner)
        del self.contents[owner]

    @rule(content=layouts, data=st.data())
    def place(self, content: PromptLayout, data: st.DataObject) -> None:
        """A run at the start of a prompt, or one that goes on from somewhere in another one."""
        after = data.draw(st.sampled_from([None, *sorted(self.runs)]))
        before, start = PromptLayout(), 0
        if after is not None:
            whole, begin, _ = self.runs[after]
            cut = whole.boundary_at_or_after(data.draw(st.integers(begin + 1, whole.logical_tokens)))
            assert cut is not None
            before, start = whole.prefix(cut), cut.logical_tokens
        if content.logical_tokens:
            name = f"run {len(self.runs)} {data.draw(st.integers(0, 10**9))}"
            self.tree.place(name, content.segments, start, after)
            self.runs[name] = (before.extended(content.segments), start, after)

    @rule()
    def displace_all_leaves(self) -> None:
        parents = {after for _, _, after in self.runs.values()}
        for name in self.runs.keys() - parents:
            self.tree.displace(name)
            del self.runs[name]

    @invariant()
    def runs_are_found_where_they_lie(self) -> None:
        for prompt, _, _ in self.runs.values():
            found = {depth: runs for depth, _, runs in self.tree.match(prompt)}
            for name, (layout, start, _) in self.runs.items():
                shared = layout.common_prefix(prompt).logical_tokens
                depths = {depth for depth, runs in found.items() if name in runs}
                assert max(depths, default=0) == (shared if shared > start else 0)

    @rule(prompt=layouts)
    def look_up(self, prompt: PromptLayout) -> None:
        assert match(self.tree, prompt) == naive_match(self.contents, prompt)

    @invariant()
    def is_sound(self) -> None:
        self.tree.check_integrity()
        for owner, layout in self.contents.items():
            assert owner in self.tree
            assert self.tree.end_of(owner) == layout.end
            assert match(self.tree, layout) == naive_match(self.contents, layout)

    @invariant()
    def containment_is_that_of_layouts(self) -> None:
        for owner, other in itertools.permutations(self.contents, 2):
            mine, theirs = self.contents[owner], self.contents[other]
            assert self.tree.is_contained(owner, (other,)) == (mine.common_prefix(theirs) == mine.end)

    def teardown(self) -> None:
        for owner in list(self.contents):
            self.tree.remove(owner)
            self.tree.check_integrity()
        while self.runs:
            self.displace_all_leaves()
            self.tree.check_integrity()
        assert not self.tree._roots, "an empty tree has no nodes left"


TestTreeAgainstDict = TreeAgainstDict.TestCase
TestTreeAgainstDict.settings = settings(max_examples=100, stateful_step_count=30)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(token_ids, min_size=1, max_size=5)), max_size=20))
def test_an_edge_that_outgrew_its_limit_goes_on_in_a_child(steps: list[tuple[int, list[int]]]) -> None:
    contents = dict.fromkeys(range(3), PromptLayout())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(radix, "_JOIN_LIMIT", 3)
        tree: PrefixTree[str] = PrefixTree()
        for owner in contents:
            tree.insert(owner, PromptLayout())
        for owner, tokens in steps:
            tree.extend(owner, PromptSegment.text(tokens))
            contents[owner] = contents[owner].extended([PromptSegment.text(tokens)])
            tree.check_integrity()
    for layout in contents.values():
        assert match(tree, layout) == naive_match(contents, layout)


def test_whoever_leaves_the_others_are_still_found() -> None:
    """Every way three owners can hold up to three of two tokens, and each of them leaving."""
    every = [PromptLayout.of_text(row) for size in range(4) for row in itertools.product(range(2), repeat=size)]
    longest = every[-8:]
    for contents in itertools.combinations_with_replacement(every, 3):
        for leaving in range(3):
            tree, left = PrefixTree[str](), dict(enumerate(contents))
            for owner, layout in left.items():
                tree.insert(owner, layout)
            tree.remove(leaving)
            del left[leaving]
            tree.check_integrity()
            assert all(tree.end_of(owner) == layout.end for owner, layout in left.items())
            assert all(match(tree, prompt) == naive_match(left, prompt) for prompt in longest)


def test_inserting_again_replaces_what_was_there() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert(1, PromptLayout.of_text([1, 2, 3]))
    tree.insert(1, PromptLayout.of_text([4]))
    assert match(tree, PromptLayout.of_text([1, 2, 3])) == []
    assert match(tree, PromptLayout.of_text([4, 5])) == [(1, frozenset({1}))]


def test_generated_tokens_never_reach_those_who_shared_the_prompt() -> None:
    tree: PrefixTree[str] = PrefixTree()
    prompt = PromptLayout.of_text([1, 2])
    tree.insert(1, prompt)
    tree.insert(2, prompt)
    tree.extend(1, PromptSegment.text([3]))
    assert match(tree, PromptLayout.of_text([1, 2, 3])) == [
        (3, frozenset({1})),
        (2, frozenset({2})),
    ]


def test_a_caller_who_holds_the_extension_cannot_change_the_tree() -> None:
    tree: PrefixTree[str] = PrefixTree()
    grown = np.array([3, 4], np.int32)
    tree.insert(1, PromptLayout.of_text([1]))
    tree.extend(1, PromptSegment.text(grown))
    grown[:] = 9
    assert match(tree, PromptLayout.of_text([1, 3, 4]))[0][0] == 3


def test_nothing_is_found_under_another_scope() -> None:
    tree: PrefixTree[str] = PrefixTree()
    prompt = PromptLayout.of_text([1, 2, 3])
    tree.insert(1, prompt, "one")
    tree.place("run", prompt.segments, 0, None, "one")
    assert match(tree, prompt, "one") == [(3, frozenset({1}))]
    assert match(tree, prompt, "two") == match(tree, prompt) == []
    tree.remove(1)
    assert [found.runs for found in tree.match(prompt, "one")] == [{"run"}]
    tree.displace("run")
    assert not tree._roots


def test_a_run_that_branches_off_cuts_the_edge_it_leaves() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.place("a", PromptLayout.of_text([1, 2, 3, 4]).segments, 0, None)
    tree.place("b", PromptLayout.of_text([9, 8]).segments, 2, "a")
    found = [(depth, set(runs)) for depth, _, runs in tree.match(PromptLayout.of_text([1, 2, 9, 8, 7]))]
    assert found == [(4, {"b"}), (2, {"a"})]
    tree.displace("b")
    assert [(depth, set(runs)) for depth, _, runs in tree.match(PromptLayout.of_text([1, 2, 3, 4]))] == [(4, {"a"})]
    tree.check_integrity()
