"""The C core as Python sees it: work areas, permutations, draws, checksums. Thin: no policy lives here.

A `Work` owns C buffers that are used again for the next frame. What it hands out are views into them, valid until
its next call, and it belongs to one thread at a time. Calls release the GIL. Nothing is loaded or started on import:
the zstd functions are looked up by the first `Work` of the process.
"""

import os
import sys
from array import array
from typing import Any, Optional, Union

from shuflr._native import ffi, lib
from shuflr.errors import DataError, OversizedRecord, ShuflrError

Bytes = Union[bytes, bytearray, memoryview]

UNBOUNDED = (1 << 64) - 1
FRAME_LIMIT = (1 << 32) - 1  # sizes in a seek table are 32 bits wide

SKIP, FAIL, PASSTHROUGH = int(lib.SHUFLR_SKIP), int(lib.SHUFLR_FAIL), int(lib.SHUFLR_PASS)
UNCHECKED, XXH64, FNV1A = -1, int(lib.SHUFLR_CHECK_XXH64), int(lib.SHUFLR_CHECK_FNV)

_FAULTS = {
    int(lib.SHUFLR_BAD_FRAME): "the bytes are not valid zstd, or hold more than they declare",
    int(lib.SHUFLR_WRONG_SIZE): "decodes to another length than the seek table says",
    int(lib.SHUFLR_WRONG_CHECKSUM): "its content does not match its checksum",
    int(lib.SHUFLR_BAD_INDEX): "the index points outside of the data",
}

# The struct's fields, and the zstd function behind each: all of libzstd's stable interface.
_ZSTD_FUNCTIONS = {
    "create_dctx": "ZSTD_createDCtx",
    "free_dctx": "ZSTD_freeDCtx",
    "decompress_dctx": "ZSTD_decompressDCtx",
    "decompress_stream": "ZSTD_decompressStream",
    "is_error": "ZSTD_isError",
    "frame_content_size": "ZSTD_getFrameContentSize",
    "find_frame_compressed_size": "ZSTD_findFrameCompressedSize",
    "create_cctx": "ZSTD_createCCtx",
    "free_cctx": "ZSTD_freeCCtx",
    "compress_cctx": "ZSTD_compressCCtx",
    "compress_bound": "ZSTD_compressBound",
}


def check(status: int, what: str = "data") -> None:
    """Raises what a status of the core means; `what` names the thing it is about."""
    if status == lib.SHUFLR_OK:
        return
    if status == lib.SHUFLR_NO_MEMORY:
        raise MemoryError(f"{what}: not enough memory")
    raise DataError(f"{what}: {_FAULTS.get(status, f'fault {status}')}")


def _wheel_addresses() -> "dict[str, int]":
    """The functions inside the `zstandard` wheel, by the address its cffi backend gives.

    The backend is loaded by its file: importing the package would load its other backend too, for 20 ms."""
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

    module: Any = sys.modules.get("zstandard._cffi")
    for folder in sys.path if module is None else ():
        for suffix in EXTENSION_SUFFIXES:
            path = os.path.join(folder, "zstandard", "_cffi" + suffix)
            if os.path.exists(path):
                loader = ExtensionFileLoader("zstandard._cffi", path)
                module = loader.create_module(ModuleSpec("zstandard._cffi", loader, origin=path))
                loader.exec_module(module)
                break
        if module is not None:
            break
    if module is None:
        raise ImportError("zstandard has no cffi backend here")
    return {
        field: int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, name)))
        for field, name in _ZSTD_FUNCTIONS.items()
    }


_LIBRARIES = (b"libzstd.so.1", b"libzstd.1.dylib")

# From here on libzstd decodes Huffman codes with assembly on x86-64. The wheel's copy is compiled without it, and
# decodes JSON text about an eighth slower.
_ASSEMBLY = 10502


def _system_library(table: Any, oldest: int) -> bool:
    """Fills the table from the system's libzstd, if there is one that is new enough."""
    return any(int(lib.shuflr_zstd_load(name, table)) >= oldest for name in _LIBRARIES)


_zstd: Any = None  # written once, with the same value whoever comes first


def zstd() -> Any:
    """The table of zstd function addresses, looked up once per process: from the system's library where that is the
    faster one, else from the `zstandard` wheel, else from whatever library the system has."""
    global _zstd
    if _zstd is None:
        table = ffi.new("shuflr_zstd *")
        if os.uname().machine != "x86_64" or not _system_library(table, _ASSEMBLY):
            try:
                table = ffi.new("shuflr_zstd *", _wheel_addresses())
            except (ImportError, AttributeError):
                if not _system_library(table, 1):
                    raise ShuflrError(
                        "no zstd found: neither the zstandard package's cffi backend nor the system's libzstd"
                    ) from None
        _zstd = table
    return _zstd


def pointer(data: Bytes) -> Any:
    """The bytes as C sees them, without a copy. Keep the result alive as long as it is in use."""
    return ffi.from_buffer("uint8_t[]", data)


class BlockMemory:
    """Memory for one block, apart from the work area that fills it."""

    def __init__(self) -> None:
        self._out = ffi.new("uint8_t **")
        self._cap = ffi.new("size_t *")

    @property
    def size(self) -> int:
        """Bytes it holds."""
        return int(self._cap[0])

    def swap(self, work: "Work") -> None:
        """Becomes what `work` gathers into, and the other way round; a second time undoes it."""
        lib.shuflr_swap_block(work._work, self._out, self._cap)

    def view(self, size: int) -> memoryview:
        """Its first bytes; the view keeps it alive."""
        return memoryview(ffi.buffer(ffi.gc(self._out[0], self._outlived), size)) if size else memoryview(b"")

    def _outlived(self, memory: Any) -> None:
        """A view is gone."""

    def __del__(self) -> None:
        lib.shuflr_block_free(self._out[0])


class Batches:
    """How records become batches of the wire, and the one that is open: its number, its records, its bytes.

    most_records, most_bytes: a batch that has one of them is closed. level: of zstd batches; 0 for plain ones."""

    def __init__(self, most_records: int, most_bytes: int, level: int = 0) -> None:
        self.state = ffi.new("shuflr_batches *", {"most_records": most_records, "most_bytes": most_bytes})
        self.state.level = level
        self.carry = b""

    def begin(self, epoch: int) -> None:
        """The batches that follow belong to an epoch; none may be open."""
        self.state.epoch = epoch

    @property
    def open(self) -> "tuple[int, int, int, int, bytes]":
        """The open batch, so that it can be put back."""
        state = self.state
        return int(state.batch), int(state.records), int(state.unended), int(state.unended_len), self.carry

    @open.setter
    def open(self, value: "tuple[int, int, int, int, bytes]") -> None:
        state = self.state
        state.batch, state.records, state.unended, state.unended_len, self.carry = value


def _address(memory: Any) -> int:
    return int(ffi.cast("uintptr_t", memory))


class Work:
    """One thread's area for frames: decoded content, record spans, the block gathered last."""

    def __init__(self) -> None:
        self._work = ffi.gc(lib.shuflr_work_new(zstd()), lib.shuflr_work_free)
        if self._work == ffi.NULL:
            raise MemoryError("no memory for a work area")
        self._kind = ffi.new("int *")
        self._room = bytearray()

    def room(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes for reading into, the same one as long as it suffices."""
        if len(self._room) < size:
            self._room = bytearray(size)
        return self._room

    @property
    def content(self) -> memoryview:
        """The decoded frame."""
        return self._view(self._work.content, self._work.content_len)

    @property
    def block(self) -> memoryview:
        """The records gathered last."""
        return self._view(self._work.out, self._work.out_len)

    def _view(self, memory: Any, size: int) -> memoryview:
        """C memory as a view that keeps this work area alive: its pointer's destructor is a method of it."""
        return memoryview(ffi.buffer(ffi.gc(memory, self._outlived), size)) if size else memoryview(b"")

    def _outlived(self, memory: Any) -> None:
        """A view is gone; the memory stays with the work area."""

    @property
    def records(self) -> int:
        """Records in the frame."""
        return int(self._work.records)

    @property
    def emitted(self) -> int:
        """Records in the block."""
        return int(self._work.emitted)

    @property
    def dropped(self) -> int:
        """Records passed over by the size policy when the block was gathered."""
        return int(self._work.dropped)

    @property
    def left(self) -> int:
        """Records of the frame not gathered or dropped yet."""
        return int(self._work.records - self._work.next)

    def decode(self, data: Bytes, size: int = UNBOUNDED, limit: int = FRAME_LIMIT, what: str = "frame") -> memoryview:
        """Decodes all zstd frames in `data`, which must come to `size` bytes, or to at most `limit` when not given."""
        check(lib.shuflr_decode(self._work, pointer(data), len(data), size, limit), what)
        return self.content

    def decode_into(self, data: Bytes, target: Any, size: int, what: str = "frame") -> None:
        """The same into C memory that has room for `size` bytes."""
        check(lib.shuflr_decode_into(self._work, pointer(data), len(data), target, size), what)

    def ends(self, data: Bytes, base: int) -> memoryview:
        """base + where each record of `data` ends, as 64-bit numbers in bytes; what follows the last LF is a record."""
        check(lib.shuflr_ends(self._work, pointer(data), len(data), base))
        return self._view(self._work.spans, 8 * self._work.records)

    def split(self, key: Optional[bytes]) -> None:
        """Finds the records of the content and puts them in the order of a 32-byte key (None: as they are)."""
        check(lib.shuflr_split(self._work, ffi.NULL if key is None else key))

    def gather(
        self, limit: int = UNBOUNDED, prefix: bool = False, max_line: int = UNBOUNDED, policy: int = PASSTHROUGH
    ) -> memoryview:
        """The next `limit` records as one block: with their LFs, or each as u32 length and bare bytes."""
        status = lib.shuflr_gather(self._work, limit, prefix, max_line, policy)
        self._raise_oversized(status, max_line)
        check(status)
        return self.block

    def frame(
        self,
        data: Bytes,
        size: int,
        checksum: int,
        kind: int,
        key: Optional[bytes],
        first: int = 0,
        limit: int = UNBOUNDED,
        prefix: bool = False,
        max_line: int = UNBOUNDED,
        policy: int = PASSTHROUGH,
        what: str = "frame",
    ) -> int:
        """Decode, check, split, shuffle and gather in one call; returns the kind of checksum that agreed.

        The block is in `block`. Under FAIL an oversized record raises `OversizedRecord`, with what precedes it in
        `block`. `kind` UNCHECKED leaves the checksum alone."""
        self._kind[0] = kind
        status = lib.shuflr_frame(
            self._work, pointer(data), len(data), size, FRAME_LIMIT, checksum, self._kind,
            ffi.NULL if key is None else key, first, limit, prefix, max_line, policy,
        )  # fmt: skip
        self._raise_oversized(status, max_line)
        check(status, what)
        return int(self._kind[0])

    @property
    def size(self) -> int:
        """Bytes that its buffers hold, whatever is in them."""
        work = self._work
        return int(work.content_cap + work.out_cap + 8 * work.spans_cap) + len(self._room)

    def load(self, block: Bytes) -> None:
        """Takes a block of whole records in as content, in their order."""
        check(lib.shuflr_load(self._work, pointer(block), len(block)))
        self.split(None)

    def batches(
        self, batches: Batches, limit: int = UNBOUNDED, final: bool = False, max_line: int = UNBOUNDED,
        policy: int = PASSTHROUGH,
    ) -> memoryview:  # fmt: skip
        """The next `limit` records as wire messages; the batch left open stays in `batches`, unless `final`."""
        state = batches.state
        status = lib.shuflr_batch(
            self._work, state, batches.carry, len(batches.carry), limit, final, max_line, policy
        )
        behind = self._work.out_len + int(lib.SHUFLR_BATCH_HEAD)
        batches.carry = bytes(ffi.buffer(self._work.out + behind, state.open_len)) if state.open_len else b""
        self._raise_oversized(status, max_line)
        check(status)
        return self.block

    def listed(self, first: int = 0) -> "list[bytes]":
        """The records of the frame in their order, without their LFs, from record `first` on."""
        from shuflr._records import from_spans

        work = self._work
        return from_spans(_address(work.content), _address(work.spans), min(first, work.records), work.records)

    def entries(self, frame: int) -> bytes:
        """An index entry for each record of the content, in order: frame, offset and length, each u32."""
        self.split(None)
        out = bytearray(12 * self.records)
        lib.shuflr_entries(self._work.spans, self.records, frame, ffi.from_buffer("shuflr_entry[]", out))
        return bytes(out)

    def _raise_oversized(self, status: int, max_line: int) -> None:
        if status == lib.SHUFLR_OVERSIZED:
            raise OversizedRecord(int(self._work.bad_offset), int(self._work.bad_len), max_line)

    def compress(self, data: Bytes, level: int) -> "tuple[memoryview, int]":
        """One zstd frame of `data`, and the low 32 bits of its XXH64. The memory is new: a writer may keep it."""
        cap = lib.shuflr_compress_bound(zstd(), len(data))
        out = bytearray(cap)
        size = ffi.new("size_t *")
        checksum = ffi.new("uint32_t *")
        check(
            lib.shuflr_compress(self._work, pointer(data), len(data), level, pointer(out), cap, size, checksum),
            "compressing a frame",
        )
        return memoryview(out)[: size[0]], int(checksum[0])


class Gate:
    """Lets so many threads in at once, the others in the order they came. A thread that waits here, or here for its
    socket, does not take part in the contest for the interpreter."""

    def __init__(self, permits: int) -> None:
        self._gate = ffi.gc(lib.shuflr_gate_new(permits), lib.shuflr_gate_free)
        if self._gate == ffi.NULL:
            raise MemoryError("no memory for a gate")

    def enter(self) -> None:
        lib.shuflr_gate_enter(self._gate)

    def leave(self) -> None:
        lib.shuflr_gate_leave(self._gate)

    def poll(self, fd: int, events: int, wake: int = -1, timeout: Optional[float] = None) -> int:
        """Waits for events of a descriptor, then enters and returns them. 0, without entering: `wake` is readable,
        `timeout` seconds are over, or a signal came."""
        ms = -1 if timeout is None else min(max(int(timeout * 1000), 0), 1 << 30)
        return int(lib.shuflr_gate_poll(self._gate, fd, events, wake, ms))

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *exception: object) -> None:
        self.leave()


class ZstdStream:
    """Decodes zstd that has no seek table, piece by piece: all frames, skippable ones passed over."""

    def __init__(self) -> None:
        self._work = ffi.gc(lib.shuflr_work_new(zstd()), lib.shuflr_work_free)
        self._at = ffi.new("size_t *")
        self._out_len = ffi.new("size_t *")
        self._open = ffi.new("int *")

    @property
    def open(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._open[0])

    def feed(self, data: Bytes, at: int, out: Bytes) -> "tuple[int, int]":
        """Decodes from data[at:] into `out`; returns how far it read and how much it wrote."""
        self._at[0], self._out_len[0] = at, 0
        status = lib.shuflr_decode_stream(
            self._work, pointer(data), len(data), self._at, pointer(out), len(out), self._out_len, self._open
        )
        check(status, "zstd stream")
        return int(self._at[0]), int(self._out_len[0])


class Draws:
    """The ChaCha20 word stream of a 32-byte key and the draws made from it; `position` counts words."""

    def __init__(self, key: bytes, position: int = 0) -> None:
        if len(key) != 32:
            raise ValueError(f"a key has 32 bytes, not {len(key)}")
        self._rng = ffi.new("shuflr_rng *")
        lib.shuflr_rng_init(self._rng, key, position)

    @property
    def position(self) -> int:
        return int(lib.shuflr_rng_position(self._rng))

    def u32(self) -> int:
        return int(lib.shuflr_next_u32(self._rng))

    def u64(self) -> int:
        return int(lib.shuflr_next_u64(self._rng))

    def below(self, n: int) -> int:
        """Uniform in [0, n), by the 32-bit draw where n allows it, else by the 64-bit one."""
        if n < 1:
            raise ValueError(f"nothing is below {n}")
        return int(lib.shuflr_below32(self._rng, n) if n < 1 << 32 else lib.shuflr_below64(self._rng, n))

    def below64(self, n: int) -> int:
        """Uniform in [0, n), always by the 64-bit draw."""
        if n < 1:
            raise ValueError(f"nothing is below {n}")
        return int(lib.shuflr_below64(self._rng, n))


def key_of_u64(seed: int) -> bytes:
    """The 32-byte key that rand's `seed_from_u64` makes of a seed: eight outputs of a PCG-XSH-RR generator."""
    words, state = bytearray(), seed
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) & UNBOUNDED
        mixed = ((state >> 18 ^ state) >> 27) & 0xFFFFFFFF
        turn = state >> 59
        words += ((mixed >> turn | mixed << (32 - turn)) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(words)


def permutation(key: bytes, n: int) -> "array[int]":
    """The shuffle of 0..n-1 under a 32-byte key: out[k] is the index of the k-th item handed out.

    4 bytes an item up to 2^32-1 items, 8 beyond."""
    if len(key) != 32:
        raise ValueError(f"a key has 32 bytes, not {len(key)}")
    rng = ffi.new("shuflr_rng *")
    lib.shuflr_rng_init(rng, key, 0)
    wide = n > FRAME_LIMIT
    out = array("Q" if wide else "I", [0]) * n
    if n:
        fill = lib.shuflr_permutation_u64 if wide else lib.shuflr_permutation_u32
        fill(rng, ffi.from_buffer("uint64_t[]" if wide else "uint32_t[]", out), n)
    return out


def checked(data: Bytes, expected: int, kind: int, what: str) -> int:
    """Compares the low 32 bits of a checksum, trying `kind` first; returns the kind that agreed. Raises DataError."""
    found = ffi.new("int *", kind)
    check(lib.shuflr_check(pointer(data), len(data), expected, found), what)
    return int(found[0])


def xxh64(data: Bytes) -> int:
    """XXH64 with seed 0."""
    return int(lib.shuflr_xxh64(pointer(data), len(data)))


def xxh3(data: Bytes) -> int:
    """XXH3-64 with seed 0."""
    return int(lib.shuflr_xxh3(pointer(data), len(data)))


def frame_sums(frame: Bytes) -> bytes:
    """What a stored frame contributes to the checksum of its message, 64 bytes a KiB; nothing for a short one."""
    sums = bytearray(lib.shuflr_sums_size(len(frame)))
    if sums:
        lib.shuflr_sums(pointer(frame), len(frame), pointer(sums))
    return bytes(sums)


def raw_frame_checksum(head: bytes, sums: bytes, length: int) -> int:
    """XXH3-64 of a raw-frame message, from its 41-byte head, its frame's sums and length."""
    if len(head) != lib.SHUFLR_RAW_HEAD or not sums or len(sums) != lib.shuflr_sums_size(length):
        raise ValueError("these are not the head and sums of a raw frame of that length")
    return int(lib.shuflr_sums_digest(head, sums, length))


class Xxh3:
    """The same of bytes that come in pieces."""

    def __init__(self) -> None:
        self._state = ffi.new("shuflr_xxh3_state *")
        lib.shuflr_xxh3_init(self._state)

    def update(self, data: Bytes) -> None:
        lib.shuflr_xxh3_update(self._state, pointer(data), len(data))

    def digest(self) -> int:
        """The checksum of all so far; more may follow."""
        return int(lib.shuflr_xxh3_digest(self._state))


def fnv1a_low32(data: Bytes) -> int:
    """The low 32 bits of the 64-bit FNV-1a."""
    return int(lib.shuflr_fnv1a_low32(pointer(data), len(data)))


def count_lf(data: Bytes) -> int:
    """How many bytes 0x0A there are."""
    return int(lib.shuflr_count_lf(pointer(data), len(data)))


def after_records(data: Bytes, n: int) -> "tuple[int, int]":
    """The offset just past the n-th 0x0A and n; or the length and how many there are when there are fewer."""
    found = ffi.new("uint64_t *")
    return int(lib.shuflr_after_records(pointer(data), len(data), n, found)), int(found[0])


def after_last(data: Bytes) -> int:
    """The offset just past the last 0x0A; 0 when there is none."""
    return int(lib.shuflr_after_last(pointer(data), len(data)))


def record_ends(data: Bytes, base: int = 0) -> "array[int]":
    """base + the offset just past each 0x0A, as 64-bit numbers."""
    ends = array("Q", [0]) * count_lf(data)
    if ends:
        at = ffi.new("size_t *")
        lib.shuflr_find_ends(pointer(data), len(data), base, at, ffi.from_buffer("uint64_t[]", ends), len(ends))
    return ends


def length_prefixed(block: Bytes) -> memoryview:
    """A block of whole records as u32 length and bare bytes each: the body of a plain batch."""
    out = bytearray(len(block) + 3 * count_lf(block) + 4)
    return memoryview(out)[: lib.shuflr_length_prefix(pointer(block), len(block), pointer(out))]


def lines(data: Bytes, size: int) -> "list[bytes]":
    """The records that end in the first `size` bytes of `data`, without their LFs, and behind them what follows the
    last LF, which may be nothing."""
    from shuflr._records import from_lines

    return from_lines(_address(pointer(data)), min(size, len(data)))


def batched(messages: Bytes) -> "tuple[list[bytes], int]":
    """The records of the whole plain-batch messages at the beginning of `messages`, checked, and how many bytes these
    messages are. Raises DataError for a damaged one."""
    from shuflr._records import from_batches

    try:
        return from_batches(_address(pointer(messages)), len(messages))
    except ValueError as error:
        raise DataError(str(error)) from None


def prefixed(data: Bytes, records: int) -> "list[bytes]":
    """So many records, each behind its u32 length. Raises DataError for one that reaches beyond the data."""
    from shuflr._records import from_prefixed

    try:
        return from_prefixed(_address(pointer(data)), len(data), records)
    except ValueError as error:
        raise DataError(str(error)) from None


def json_fault(record: Bytes) -> "Optional[tuple[str, int]]":
    """None for a record that is one JSON value, else what is wrong and at which byte."""
    at = ffi.new("size_t *")
    fault = lib.shuflr_json_check(pointer(record), len(record), at)
    return None if fault == lib.SHUFLR_JSON_OK else (_JSON_FAULTS[fault], int(at[0]))


_JSON_FAULTS = {
    int(lib.SHUFLR_JSON_VALUE): "a value is missing or unknown",
    int(lib.SHUFLR_JSON_STRING): "a string has a raw control byte, a bad escape or no end",
    int(lib.SHUFLR_JSON_NUMBER): "a number is malformed",
    int(lib.SHUFLR_JSON_PUNCTUATION): "a key, comma, colon or bracket is missing",
    int(lib.SHUFLR_JSON_TRAILING): "something follows the value",
    int(lib.SHUFLR_JSON_DEPTH): "nested more than 128 deep",
}
