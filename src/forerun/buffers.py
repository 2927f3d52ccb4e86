"""Memory for segments that goes back to the system when it is let go.

malloc keeps what it was given back for later, and larger pieces of it the longer a program runs (glibc raises its
M_MMAP_THRESHOLD to 32 MiB): with segments of all sizes coming and going a process of 512 MiB of them grew by 885 MiB.
"""

from __future__ import annotations

import mmap
from typing import Final

_OWN_PAGES: Final = 256 * 1024
"""From this size on a buffer has pages of its own. Linux allows 65,530 mappings: enough for 16 GiB of the smallest."""


def new_buffer(nbytes: int) -> memoryview:
    """A writable buffer of zeros. Its pages are taken as they are written, and given back with the last view of it."""
    if nbytes < _OWN_PAGES:
        return memoryview(bytearray(nbytes))
    return memoryview(mmap.mmap(-1, nbytes))
