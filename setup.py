"""Hands setuptools what only a `setup()` call can pass (setup.cfg is read too late): the cffi builder, and the one
extension that makes Python objects."""

from setuptools import Extension, setup

setup(
    cffi_modules=["_native/build.py:ffi"],
    ext_modules=[
        Extension(
            "shuflr._records",
            ["_native/python/records.c", "_native/received.c", "_native/scan.c", "_native/xxh3.c"],
            include_dirs=["_native"],
            define_macros=[("Py_LIMITED_API", "0x03090000")],
            extra_compile_args=["-O3", "-std=c99"],
            py_limited_api=True,
        )
    ],
)
