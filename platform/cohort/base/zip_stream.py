"""A zip that is made while it is sent, so that no more than a chunk of it is held. Its files are stored as they are:
weights do not compress. Cards have a layout of their own (`cohort.evidence.zip_layout`).
"""

import zipfile
from collections.abc import Iterable, Iterator

_EPOCH = (1980, 1, 1, 0, 0, 0)
_READABLE = 0o644 << 16


class _Sink:
    """What the archive has written and nobody has taken yet. Without `tell`, so that nothing is written twice."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, content: bytes) -> int:
        self._written.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """What is not taken yet still is."""

    def take(self) -> bytes:
        taken = b"".join(self._written)
        self._written.clear()
        return taken


def zip_chunks(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[bytes]:
    """The zip's bytes, of (path in it, content in chunks)."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name, chunks in files:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = _READABLE
            with archive.open(info, "w", force_zip64=True) as entry:
                for chunk in chunks:
                    entry.write(chunk)
                    yield sink.take()
    yield sink.take()
