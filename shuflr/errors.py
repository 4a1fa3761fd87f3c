"""What can go wrong, in one place. The command line maps each class to its exit code, a server to its status.

A file that is missing, forbidden or unreadable stays the OSError that the system raised.
"""


class ShuflrError(Exception):
    """The common ancestor: its text is a sentence for the user."""


class InputError(ShuflrError, ValueError):
    """The request makes no sense for this input: a wrong option, a mode that needs another kind of file."""


class TokenError(InputError):
    """A resume token that belongs to another stream than the one that was opened."""


class NotSeekable(ShuflrError):
    """The file has no seek table that can be believed."""


class DataError(ShuflrError):
    """The bytes are not what they claim to be: a damaged frame, a wrong checksum, an index that points outside."""


class Truncated(ShuflrError):
    """A compressed stream that ends in the middle, or cannot be decoded further."""


class OversizedRecord(DataError):
    """A record longer than the cap, under the policy to fail.

    >>> OversizedRecord(12, 40, 32).offset
    12
    """

    def __init__(self, offset: int, length: int, cap: int) -> None:
        super().__init__(f"oversized record at byte {offset}: {length} bytes exceeds --max-line {cap}")
        self.offset = offset
        self.length = length
        self.cap = cap


class DatasetChanged(DataError):
    """A served file is not the one that was there when it was opened, or a client asked for another state of it."""


class UnknownDataset(InputError):
    """No dataset of this name is served."""


class Overloaded(ShuflrError):
    """There is no memory left for this stream; another time there may be."""


class StreamError(ShuflrError, OSError):
    """A stream from a server that cannot go on: it was refused, broke off, or did not say that it is complete."""
