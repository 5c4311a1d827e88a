"""How a card's zip is laid out, byte by byte: so that nothing can hide between, before or after its entries.

Every entry has the same date and attributes, no extra fields and no comment; entries follow each other without a gap.
A zip that differs in any byte outside the compressed contents is not as it was written.
"""

import struct
import zipfile
from typing import IO

DATE = (1980, 1, 1, 0, 0, 0)
MODE = 0o644 << 16
MAX_ENTRIES = 65_000

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_MADE_BY, _NEEDS, _UNIX = 20, 20, 3
_DOS_DATE, _DOS_TIME = (1 << 5) | 1, 0


def entry_info(name: str) -> zipfile.ZipInfo:
    """The head of a new entry; all but the name is the same for each."""
    info = zipfile.ZipInfo(name, DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = MODE
    return info


def layout_fault(handle: IO[bytes], archive: zipfile.ZipFile) -> str | None:
    """What in the zip's layout is not as a card is written; None when every byte of it is."""
    infos = archive.infolist()
    if len(infos) > MAX_ENTRIES:
        return f"it has more than {MAX_ENTRIES:,} entries"
    place, central = 0, []
    for info in infos:
        try:
            name = info.orig_filename.encode("ascii")
        except UnicodeEncodeError:
            return f"the name {info.orig_filename!a} is not plain ASCII"
        if info.header_offset != place:
            return f"there is something before {info.orig_filename!a}"
        sizes = (info.CRC, info.compress_size, info.file_size)
        when = (zipfile.ZIP_DEFLATED, _DOS_TIME, _DOS_DATE)
        head = _LOCAL.pack(b"PK\x03\x04", _NEEDS, 0, *when, *sizes, len(name), 0) + name
        handle.seek(place)
        if handle.read(len(head)) != head:
            return f"the head of {info.orig_filename!a} is not as it was written"
        rest = (len(name), 0, 0, 0, 0, MODE, place)
        central.append(_CENTRAL.pack(b"PK\x01\x02", _MADE_BY, _UNIX, _NEEDS, 0, 0, *when, *sizes, *rest) + name)
        place += len(head) + info.compress_size
    directory = b"".join(central)
    end = _END.pack(b"PK\x05\x06", 0, 0, len(infos), len(infos), len(directory), place, 0)
    handle.seek(place)
    if handle.read(len(directory) + len(end) + 1) != directory + end:
        return "its directory is not as it was written, or something follows it"
    return None
