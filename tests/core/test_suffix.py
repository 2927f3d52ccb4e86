"""The index of past outputs: what it proposes was said after the same tokens, by the same tenant, not too long ago."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.history import MEDIA_TOKEN, TokenHistory
from forerun.core.prompt import PromptLayout, PromptSegment
from forerun.core.request import Request, SamplingParams
from forerun.core.step import DraftRequest, Proposal
from forerun.core.suffix import PAGE, SuffixIndex, WrittenText, most_frequent


class Writer:
    """One request's text, written as it grows."""

    def __init__(self, index: SuffixIndex, prompt: list[int] | PromptLayout, tenant: str = "") -> None:
        self.index, self.tenant = index, tenant
        layout = prompt if isinstance(prompt, PromptLayout) else PromptLayout.of_text(prompt)
        self.history = TokenHistory(layout)
        self.text = WrittenText(self.history)
        self.prompt = prompt

    def say(self, tokens: list[int], *, is_whole: bool = True) -> Writer:
        for token in tokens:
            self.history.append(token)
        self.index.write(self.text, self.history, self.tenant, is_whole=is_whole)
        self.index.check_integrity()
        return self


def propose(index: SuffixIndex, tokens: list[int], limit: int = 8, tenant: str = "") -> Proposal:
    request = Request(id="r", prompt=PromptLayout.of_text([1]), params=SamplingParams(), tenant=tenant)
    (proposal,) = index.propose([DraftRequest(0, np.array(tokens, np.int32), 0, limit, request)])
    return proposal


def matches(texts: list[list[int]], tokens: list[int]) -> list[tuple[int, list[int]]]:
    """Of every place where the last 3 tokens occur: how many tokens match (at most 32), and what follows."""
    found = []
    for text in texts:
        for end in range(3, len(text) + 1):
            length = 0
            while length < min(end, len(tokens), 32) and text[end - 1 - length] == tokens[-1 - length]:
                length += 1
            if length >= 3:
                found.append((length, text[end:]))
    return found


def random_texts(rng: np.random.Generator, vocabulary: int) -> list[list[int]]:
    """Texts of up to three pages that share passages."""
    passages = [rng.integers(0, vocabulary, rng.integers(1, 60)).tolist() for _ in range(6)]
    return [
        [token for at in rng.integers(0, len(passages), rng.integers(1, 6)) for token in passages[at]] for _ in range(5)
    ]


def write_interleaved(index: SuffixIndex, texts: list[list[int]], rng: np.random.Generator) -> None:
    writers = [Writer(index, text[:1]) for text in texts]
    left = [text[1:] for text in texts]
    while any(left):
        at = int(rng.integers(len(texts)))
        count = int(rng.integers(1, 40))
        writers[at].say(left[at][:count], is_whole=False)
        left[at] = left[at][count:]
    for writer in writers:
        writer.say([])


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("vocabulary", [2, 12, 1000])
def test_a_proposal_is_the_most_frequent_continuation_of_the_longest_match(seed: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    index, texts = SuffixIndex(100 * PAGE), random_texts(np.random.default_rng(seed), vocabulary)
    write_interleaved(index, texts, rng)
    for _ in range(30):
        source = texts[int(rng.integers(len(texts)))]
        cut = int(rng.integers(len(source) + 1))
        tokens, limit = source[max(cut - int(rng.integers(1, 50)), 0) : cut], int(rng.integers(1, PAGE + 9))
        found = [(length, rest) for length, rest in matches(texts, tokens) if rest]
        proposal = propose(index, tokens, limit)
        if not found:
            assert proposal.tokens == ()
            continue
        if len(matches(texts, tokens)) > 16:  # only the latest are looked at
            assert not proposal.tokens or any(
                list(proposal.tokens) == rest[: len(proposal.tokens)] for _, rest in found
            )
            continue
        longest = max(length for length, _ in found)
        rests = [rest for length, rest in found if length == longest]
        firsts = [rest[0] for rest in rests]
        assert firsts.count(proposal.tokens[0]) == max(map(firsts.count, firsts))
        assert any(list(proposal.tokens) == rest[: min(limit, PAGE)] for rest in rests)
        assert proposal.grade in (longest.bit_length(), 1)


def test_what_a_running_request_says_is_found_before_it_ends() -> None:
    index = SuffixIndex(1000)
    Writer(index, [1]).say(list(range(100, 120)), is_whole=False)
    assert propose(index, [100, 101, 102, 103]).tokens == tuple(range(104, 112))


def test_an_answer_given_before_is_found_from_its_first_token_on() -> None:
    index = SuffixIndex(1000)
    prompt = list(range(50))
    Writer(index, prompt).say([7, 8, 9, 7])
    assert propose(index, prompt).tokens == (7, 8, 9, 7)
    assert propose(index, prompt).grade == 6


def test_of_what_followed_the_most_frequent_is_proposed_and_graded_by_how_sure_it_is() -> None:
    index = SuffixIndex(1000)
    for rest in ([4, 5], [6, 7], [4, 8]):
        Writer(index, [0]).say([1, 2, 3, *rest])
    assert propose(index, [1, 2, 3], limit=1) == Proposal((4,), 2)
    Writer(index, [0]).say([1, 2, 3, 6, 9])
    assert propose(index, [1, 2, 3], limit=1) == Proposal((6,), 1)


def test_another_tenant_s_texts_are_not_there() -> None:
    index = SuffixIndex(1000)
    Writer(index, [0], tenant="a").say([1, 2, 3, 4, 5])
    assert propose(index, [1, 2, 3], tenant="b").tokens == ()
    Writer(index, [0], tenant="b").say([9, 9, 9, 9])
    assert propose(index, [1, 2, 3], tenant="b").tokens == ()
    assert propose(index, [1, 2, 3], tenant="a").tokens == (4, 5)


def test_the_oldest_text_makes_room_and_memory_is_bounded() -> None:
    index = SuffixIndex(8 * PAGE)
    rng = np.random.default_rng(0)
    texts: list[list[int]] = []
    most = 0
    for number in range(60):
        texts.append(rng.integers(0, 1000, int(rng.integers(10, 3 * PAGE))).tolist())
        Writer(index, [0], tenant=str(number % 3)).say(texts[-1])
        most = max(most, index.nbytes)
        tenant = str(number % 3)
        assert propose(index, texts[-1][:5], tenant=tenant).tokens == tuple(texts[-1][5:13])
    assert propose(index, texts[0][:5], tenant="0").tokens == ()
    assert most <= index.capacity * 90 + 1000
    written = sum(bool(propose(index, text[:5], tenant=str(n % 3)).tokens) for n, text in enumerate(texts))
    assert 3 <= written <= 9


def test_a_tenant_whose_texts_are_gone_leaves_nothing_behind() -> None:
    index = SuffixIndex(4 * PAGE)
    early = Writer(index, [0], tenant="early").say([1, 2, 3, 4])
    for number in range(4):
        Writer(index, [0], tenant="late").say([number] * PAGE)
    assert "1 tenants" in repr(index)
    early.say([5, 6, 7, 8])  # it goes on after all, on a page of its own
    assert propose(index, [5, 6, 7], tenant="early").tokens == (8,)


def test_a_text_longer_than_the_index_keeps_its_end() -> None:
    index = SuffixIndex(2 * PAGE)
    text = list(range(1000))
    Writer(index, [0]).say(text)
    assert propose(index, text[970:980]).tokens == tuple(text[980:988])
    assert propose(index, text[100:110]).tokens == ()


def test_media_are_neither_matched_nor_proposed() -> None:
    index = SuffixIndex(1000)
    image = PromptSegment.media("image", logical_tokens=4, native_positions=1)
    prompt = PromptLayout([PromptSegment.text([1, 2, 3]), image, PromptSegment.text([4, 5])])
    Writer(index, prompt).say([6, 7, 8])
    assert propose(index, [1, 2, 3]).tokens == ()
    assert propose(index, [4, 5, 6]).tokens == (7, 8)
    assert propose(index, [MEDIA_TOKEN] * 4).tokens == ()


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_request_for_nothing_gets_nothing(limit: int) -> None:
    index = SuffixIndex(1000)
    Writer(index, [0]).say([1, 2, 3, 4, 5])
    assert propose(index, [1, 2, 3], limit=limit) == Proposal()


def test_an_index_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0"):
        SuffixIndex(0)


def test_votes_are_counted_token_by_token_among_those_that_agree_so_far() -> None:
    rows = np.array([[1, 9, 9], [2, 3, 4], [2, 3, 5], [2, 7, 5], [1, 3, 5]], np.int32)
    assert most_frequent(rows) == ((2, 3, 4), 0.6)
    assert most_frequent(np.array([[1, -2, -2], [1, -1, -2]], np.int32)) == ((1,), 1.0)
    assert most_frequent(np.array([[1, -2, -2], [1, 4, -2]], np.int32)) == ((1, 4), 1.0)
