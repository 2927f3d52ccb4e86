"""Which segment goes when a tier is full."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.recompute import RecomputeCost
from forerun.core.retention import Retention, RetentionRecord
from forerun.core.value import POLICIES, Value, retention

BYTES = 1000


class Tier:
    """Records by name, as a catalog keeps them."""

    def __init__(self, policy: Retention) -> None:
        self.policy = policy
        self.records: dict[str, RetentionRecord] = {}

    def insert(self, key: str, parent: str = "", *, now: float, tokens: int = 512, nbytes: int = BYTES) -> None:
        above = self.records[parent] if parent else None
        start = above.start + above.tokens if above else 0
        record = RetentionRecord(key, above, start=start, tokens=tokens, nbytes=nbytes, now=now)
        self.records[key] = record
        self.policy.inserted(record, now)

    def use(self, *keys: str, now: float) -> None:
        self.policy.used([self.records[key] for key in keys], now)

    def remove(self, key: str, now: float) -> None:
        self.policy.removed(self.records.pop(key), now)

    def victim(self, now: float) -> str:
        record = self.policy.victim(now)
        return record.key if record else ""

    def evict(self, now: float) -> str:
        key = self.victim(now)
        self.remove(key, now)
        return key


@pytest.mark.parametrize("name", POLICIES)
def test_a_chain_goes_from_its_end(name: str) -> None:
    tier = Tier(retention(name))
    for at, (key, parent) in enumerate([("a", ""), ("b", "a"), ("c", "b"), ("d", "b")]):
        tier.insert(key, parent, now=at)
    gone = [tier.evict(now=10) for _ in range(4)]
    assert set(gone[:2]) == {"c", "d"}
    assert gone[2:] == ["b", "a"]
    assert tier.victim(now=10) == ""


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_held_stays_until_it_is_released_as_often(name: str) -> None:
    tier = Tier(retention(name))
    tier.insert("a", now=0)
    record = tier.records["a"]
    tier.policy.hold(record)
    tier.policy.hold(record)
    tier.policy.release(record)
    assert tier.victim(now=1) == ""
    tier.policy.release(record)
    assert tier.victim(now=1) == "a"
    with pytest.raises(ValueError, match="not held"):
        tier.policy.release(record)


@pytest.mark.parametrize("name", POLICIES)
def test_a_parent_cannot_be_removed_before_its_children(name: str) -> None:
    tier = Tier(retention(name))
    tier.insert("a", now=0)
    tier.insert("b", "a", now=0)
    with pytest.raises(ValueError, match="before its children"):
        tier.remove("a", now=1)


def test_first_in_is_first_out_whatever_was_used() -> None:
    tier = Tier(retention("fifo"))
    tier.insert("a", now=0)
    tier.insert("b", now=1)
    tier.use("a", now=2)
    assert tier.victim(now=3) == "a"


def test_the_least_recently_used_goes_first() -> None:
    tier = Tier(retention("lru"))
    tier.insert("a", now=0)
    tier.insert("b", now=1)
    tier.use("a", now=2)
    assert tier.victim(now=3) == "b"


def test_an_unknown_policy_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no policy 'mru'; there are value, lru, fifo"):
        retention("mru")


def test_by_value_what_costs_more_to_compute_for_its_size_stays_longer() -> None:
    tier = Tier(Value())
    tier.insert("small", now=0, nbytes=BYTES)
    tier.insert("large", now=0, nbytes=10 * BYTES)
    assert tier.victim(now=1) == "large"


def test_by_value_a_conversation_stays_before_a_single_request_that_came_later() -> None:
    tier = Tier(Value())
    tier.insert("talk", now=0)
    tier.use("talk", now=20)
    tier.insert("single", now=25)
    assert tier.victim(now=60) == "single"


def test_by_value_the_beginning_of_an_old_conversation_stays_before_the_end_of_another() -> None:
    tier = Tier(Value())
    for name, now in (("short", 0.0), ("long", 100.0)):
        for at in range(2 if name == "short" else 40):
            tier.insert(f"{name} {at}", f"{name} {at - 1}" if at else "", now=now)
    gone = [tier.evict(now=5000.0) for _ in range(30)]
    assert gone == [f"long {at}" for at in range(39, 9, -1)]


def test_by_value_what_a_repeated_conversation_will_need_next_waits_anew() -> None:
    tier = Tier(Value())
    for name in ("a", "b"):
        tier.insert(f"{name} head", now=0.0)
        tier.insert(f"{name} tail", f"{name} head", now=0.0)
    tier.use("b head", now=500.0)
    assert tier.victim(now=501.0) in ("a tail", "b tail")
    tier.policy.retraced(tier.records["b head"], 500.0)
    assert tier.evict(now=501.0) == "a tail"
    assert tier.evict(now=501.0) == "a head"


def test_by_value_what_comes_back_is_known_from_before() -> None:
    tier = Tier(Value())
    tier.insert("a", now=0.0)
    tier.use("a", now=5.0)
    tier.remove("a", now=50.0)
    tier.insert("a", now=60.0)
    assert tier.records["a"].uses == 2


def test_the_deeper_a_segment_the_more_it_saves() -> None:
    cost = RecomputeCost(ms_per_token=1.0, ms_per_token_kilocell=1.0)
    assert cost.ms(0, 1000) == pytest.approx(1500)
    assert cost.ms(10_000, 1000) == pytest.approx(11_500)
    assert cost.ms(0, 1000) + cost.ms(1000, 1000) == pytest.approx(cost.ms(0, 2000))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(POLICIES))
def test_a_victim_is_always_one_that_may_go(data: st.DataObject, name: str) -> None:
    tier, held, made = Tier(retention(name)), set[str](), 0
    for now in range(data.draw(st.integers(1, 60))):
        keys = sorted(tier.records)
        action = data.draw(st.sampled_from(["insert", "use", "retrace", "evict", "hold", "release"]))
        if action == "insert":
            tier.insert(str(made), data.draw(st.sampled_from(["", *keys])), now=now)
            made += 1
        elif action == "use" and keys:
            chain = _chain(tier.records[data.draw(st.sampled_from(keys))])
            tier.policy.used(chain, now)
        elif action == "retrace" and keys:
            tier.policy.retraced(tier.records[data.draw(st.sampled_from(keys))], now)
        elif action == "hold" and keys:
            held.add(key := data.draw(st.sampled_from(keys)))
            tier.policy.hold(tier.records[key])
        elif action == "release" and (free := sorted(key for key in held & set(keys) if tier.records[key].holds)):
            tier.policy.release(tier.records[data.draw(st.sampled_from(free))])
        evictable = {key for key, record in tier.records.items() if record.is_evictable}
        victim = tier.victim(now)
        assert victim in evictable or (not evictable and not victim)
        if name == "lru" and victim:
            assert tier.records[victim].last_used == min(tier.records[key].last_used for key in evictable)
        if action == "evict" and victim:
            tier.remove(victim, now)


def _chain(record: RetentionRecord) -> list[RetentionRecord]:
    chain = [record]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    return chain[::-1]
