"""Text as it may be shown, against decoding everything at once and cutting at the first completed stop."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.core.stopping import TextStream

alphabet = "ABé€😀"
text_bytes = st.text(alphabet, max_size=12).map(str.encode)
noise = st.lists(
    st.sampled_from([b"A", b"B", *(bytes([b]) for b in "é€😀".encode()), b"\xff", b"\xed\xa0\x80", b"\xc0"])
)
streams = st.one_of(text_bytes, noise.map(b"".join), st.binary(max_size=12))
stop_lists = st.lists(st.text(alphabet, min_size=1, max_size=4), max_size=3, unique=True).map(tuple)


def naive(data: bytes, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Decode all, then grow the text letter by letter until a stop string is complete."""
    text = data.decode("utf-8", "ignore")
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def shown(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[list[str], bool]:
    """What a request shows, as the scheduler uses a stream: nothing is pushed after a stop."""
    stream = TextStream(stops)
    deltas: list[str] = []
    for piece in pieces:
        deltas.append(stream.push(piece))
        if stream.stopped:
            break
    return [*deltas, stream.finish()], stream.stopped


@given(streams, stop_lists, st.lists(st.integers(0, 40), max_size=12))
@example("😀€".encode(), ("€",), [1, 2, 3, 4, 5, 6])
@example(b"AAAB", ("AAB",), [1, 2, 3])
def test_text_does_not_depend_on_how_its_bytes_were_cut(data: bytes, stops: tuple[str, ...], cuts: list[int]) -> None:
    deltas, stopped = shown(pieces_of(data, cuts), stops)
    assert ("".join(deltas), stopped) == naive(data, stops)


@given(streams, stop_lists, st.lists(st.integers(0, 40), max_size=12))
def test_what_was_shown_is_never_taken_back_nor_part_of_a_stop(
    data: bytes, stops: tuple[str, ...], cuts: list[int]
) -> None:
    expected, _ = naive(data, stops)
    so_far = ""
    for delta in shown(pieces_of(data, cuts), stops)[0]:
        so_far += delta
        assert expected.startswith(so_far)


@given(streams.filter(lambda data: "\N{REPLACEMENT CHARACTER}".encode() not in data), st.lists(st.integers(0, 40)))
def test_no_replacement_character_is_ever_made_up(data: bytes, cuts: list[int]) -> None:
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(shown(pieces_of(data, cuts), ())[0])


@given(text_bytes, st.lists(st.integers(0, 40), max_size=12))
def test_without_stops_whole_characters_are_shown_at_once(data: bytes, cuts: list[int]) -> None:
    stream = TextStream()
    seen, text = b"", ""
    for piece in pieces_of(data, cuts):
        seen += piece
        text += stream.push(piece)
        assert text == seen.decode("utf-8", "ignore")


@pytest.mark.parametrize("size", range(1, 6))
def test_no_part_of_a_stop_is_shown_before_it_is_known(size: int) -> None:
    data = b"ABCDEFGHIJKL"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    deltas, stopped = shown(pieces, ("DEFGHIJ",))
    assert ("".join(deltas), stopped) == ("ABC", True)
    assert all(letter in "ABC" for letter in "".join(deltas))


def test_a_near_miss_is_delivered_when_the_answer_ends() -> None:
    stream = TextStream(("DEFGHIJ",))
    assert [stream.push(bytes([byte])) for byte in b"ABCDEF"] == ["A", "B", "C", "", "", ""]
    assert stream.finish() == "DEF"
    assert stream.finish() == ""


def test_a_near_miss_is_delivered_as_soon_as_it_is_one() -> None:
    stream = TextStream(("DEF",))
    assert [stream.push(piece) for piece in (b"D", b"E", b"D", b"X")] == ["", "", "DE", "DX"]


def test_of_overlapping_stops_the_one_completed_first_ends_the_text() -> None:
    assert "".join(shown([b"xABCy"], ("ABCy", "BC"))[0]) == "xA"
    assert "".join(shown([b"xA", b"B", b"C"], ("BC", "ABC"))[0]) == "x"


def test_an_unfinished_character_is_never_shown() -> None:
    stream = TextStream()
    assert stream.push("é😀".encode()[:4]) == "é"
    assert stream.finish() == ""


def test_broken_bytes_are_dropped_and_the_text_goes_on() -> None:
    deltas, _ = shown([b"A\xf0\x9f", b"B", b"\xff", b"\x98C"], ())
    assert "".join(deltas) == "ABC"


def test_nothing_is_shown_after_a_stop() -> None:
    stream = TextStream(("B",))
    assert stream.push(b"ABA") == "A"
    assert stream.stopped
    assert stream.push(b"A") == stream.push(b"B") == stream.finish() == ""


def test_a_stop_may_begin_with_itself() -> None:
    assert "".join(shown([b"aab"], ("aab",))[0]) == ""
    assert "".join(shown([b"a"] * 2 + [b"aab!"], ("aab",))[0]) == "aa"


def test_a_stream_says_which_stop_string_ended_it() -> None:
    stream = TextStream(("BC", "C", "X"))
    assert stream.push(b"AB") == "A"
    assert stream.stopped_by is None
    assert stream.push(b"CX") == ""
    assert stream.stopped_by == "BC"
