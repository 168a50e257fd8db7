"""Makes glibc keep the memory of messages instead of returning it after each one.

Requests and responses of some hundred KiB are allocated all the time. By default malloc maps memory
for each one, or trims the heap when it is freed, and every message pays for the kernel's zeroed
pages: measured with 1 MiB responses, 500 page faults a message and a third of the broker's CPU, or
none, depending on the heap's layout. Source: mallopt(3).
"""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
MMAP_BYTES: Final = 32 << 20
"""Only larger blocks are mapped on their own: the largest value that glibc takes."""
KEPT_BYTES: Final = 128 << 20
"""Free memory at the heap's end that is kept."""


def keep_freed_memory() -> None:
    """Set the whole process's allocator; another C library than glibc is left as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
