"""The compiled core is there, and its block function gives the key stream that RFC 8439 publishes."""

from shuflr._native import ffi, lib


def block(key: bytes, counter: int, nonce: bytes) -> bytes:
    out = ffi.new("uint8_t[64]")
    lib.shuflr_chacha20_block(key, counter, nonce, out)
    return bytes(ffi.buffer(out))


def test_block_function_gives_the_published_vector():
    # RFC 8439, section 2.3.2
    assert block(bytes(range(32)), 1, bytes.fromhex("000000090000004a00000000")).hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_block_function_gives_the_published_all_zero_block():
    # RFC 8439, appendix A.1, vector 1
    assert block(bytes(32), 0, bytes(12)).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
