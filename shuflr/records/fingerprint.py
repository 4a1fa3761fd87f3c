"""The fingerprint of a file: BLAKE3 over its name, size, time, place and three samples. What ties an index to its file.

A copied or renamed file has another fingerprint, on purpose: an index beside it is then built again.
"""

import os
import struct
from typing import Callable

from shuflr.records.source import LocalFile, RemoteFile

_SAMPLE = 4096


def _digest(fields: bytes, size: int, read: "Callable[[int, int], bytes | memoryview]") -> bytes:
    from blake3 import blake3

    samples = [bytes(read(0, min(size, _SAMPLE))), b"", b""]
    if size > 3 * _SAMPLE:
        samples[1] = bytes(read(size // 2 - _SAMPLE // 2, _SAMPLE))
        samples[2] = bytes(read(size - _SAMPLE, _SAMPLE))
    framed = b"".join(struct.pack("<Q", len(sample)) + sample for sample in samples)
    return bytes(blake3(fields + framed).digest())


def fingerprint_of(
    name: bytes, size: int, mtime_ns: int, inode: int, device: int, read: "Callable[[int, int], bytes | memoryview]"
) -> bytes:
    """The 32 bytes for a file with these attributes; `name` is the last component of its path as given."""
    when = max(mtime_ns, 0).to_bytes(16, "little")
    fields = struct.pack("<Q", size) + when + struct.pack("<QQ", inode & 0xFFFFFFFFFFFFFFFF, device)
    return _digest(b"shuflr-v2-fingerprint\0" + name + b"\0" + fields, size, read)


def fingerprint(source: "LocalFile | RemoteFile") -> bytes:
    """The fingerprint of an open file. Behind a URL there is no inode: the URL and the store's version tag stand in."""
    if isinstance(source, LocalFile):
        status = source.status
        name = os.fsencode(os.path.basename(source.name))
        return fingerprint_of(name, status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, source.read)
    version = next((str(source.info[key]) for key in ("ETag", "etag", "md5Hash", "sha256") if source.info.get(key)), "")
    fields = struct.pack("<Q", source.size) + version.encode() + b"\0"
    return _digest(b"shuflr-url-fingerprint\0" + source.name.encode() + b"\0" + fields, source.size, source.read)
