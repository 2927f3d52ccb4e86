"""Any segment that can be."""

from __future__ import annotations

from hypothesis import strategies as st

from forerun.core.prefix import PromptCheckpointState
from forerun.core.prompt import PromptBoundary, PromptSegment
from forerun.core.segment import SegmentHeader
from tests.cache.support import header_of

_media = st.builds(
    PromptSegment.media,
    st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
    st.integers(1, 600),
    st.integers(1, 600),
)
_texts = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40).map(PromptSegment.text)
_keys = st.one_of(st.just(""), st.text("0123456789abcdef", min_size=32, max_size=32))


@st.composite
def headers(draw: st.DrawFn) -> SegmentHeader:
    """Any header that can be."""
    content = draw(st.lists(st.one_of(_texts, _media), min_size=1, max_size=5))
    before = draw(st.integers(0, 2**40))
    start = PromptBoundary(before, draw(st.integers(0, 2**31)), draw(st.integers(0, before)))
    tokens = sum(segment.tokens.size for segment in content)
    return header_of(
        content,
        start,
        parent=draw(_keys),
        scope=draw(_keys) + draw(_keys),
        draft_tokens=draw(st.integers(0, tokens)),
        whole_from=draw(st.integers(0, 2**31)),
    )


states = st.builds(
    lambda payload, is_speculative: (
        PromptCheckpointState.speculative(payload) if is_speculative else PromptCheckpointState.target(payload)
    ),
    st.binary(max_size=300),
    st.booleans(),
)
