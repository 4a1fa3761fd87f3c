"""Tokens from a file: which lines count, which clients may come in, and what a bad file leaves."""

import hashlib

import pytest

from shuflr.errors import InputError
from shuflr.server.auth import Tokens


def written(folder, text):
    path = folder / "tokens"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lines_are_trimmed_and_comments_skipped(tmp_path):
    tokens = Tokens(written(tmp_path, "# alpha\n\n  beta \r\ngämma\n"))
    assert tokens.accept(b"beta") and tokens.accept("gämma".encode())
    assert not any(tokens.accept(token) for token in (b"", b"alpha", b"# alpha", b"bet", b"beta ", b"beta\n"))


def test_a_token_may_be_kept_as_its_sum(tmp_path):
    digest = hashlib.sha256(b"secret").hexdigest()
    tokens = Tokens(written(tmp_path, f"sha256:{digest}\nplain\n"))
    assert tokens.accept(b"secret") and tokens.accept(b"plain")
    assert not tokens.accept(f"sha256:{digest}".encode()), "the sum must not be as good as the token"


@pytest.mark.parametrize("text, why", [
    ("", "contains no tokens"),
    ("# nobody\n\n", "contains no tokens"),
    (b"\xff\xfe", "not UTF-8"),
    ("good\nsha256:12\n", "line 2"),
    ("sha256:" + "g" * 64, "64 hexadecimal digits"),
])  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_with_a_sentence(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        Tokens(written(tmp_path, text))


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Tokens(tmp_path / "none")


def test_a_reload_takes_the_new_file_and_a_bad_one_leaves_the_old(tmp_path):
    path = written(tmp_path, "alpha\n")
    tokens = Tokens(path)
    path.write_text("beta\n")
    tokens.reload()
    assert tokens.accept(b"beta") and not tokens.accept(b"alpha")
    for bad in ("", "sha256:no"):
        path.write_text(bad)
        with pytest.raises(InputError):
            tokens.reload()
        assert tokens.accept(b"beta")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        tokens.reload()
    assert tokens.accept(b"beta")


@pytest.mark.parametrize("header, why", [
    (b"Bearer alpha", None),
    (b"Bearer   alpha  ", None),
    (b"", "missing Authorization header"),
    (b"bearer alpha", "malformed Authorization header"),
    (b"Basic alpha", "malformed Authorization header"),
    (b"Bearer", "malformed Authorization header"),
    (b"Bearer  ", "malformed Authorization header"),
    (b"Bearer alph", "bearer token not accepted"),
    (b"Bearer \xff", "bearer token not accepted"),
])  # fmt: skip
def test_the_header_of_a_request(tmp_path, header, why):
    assert Tokens(written(tmp_path, "alpha\n")).of_header(header) == why


@pytest.mark.parametrize("auth, why", [
    (b"alpha", None), (b" alpha\n", None), (b"", "Malformed"), (b"  ", "Malformed"), (b"other", "Mismatch"),
])  # fmt: skip
def test_the_token_of_a_hello(tmp_path, auth, why):
    assert Tokens(written(tmp_path, "alpha\n")).of_hello(auth) == why
