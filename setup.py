"""Hands the cffi builder to setuptools: a keyword that only a `setup()` call can pass (setup.cfg is read too late)."""

from setuptools import setup

setup(cffi_modules=["_native/build.py:ffi"])
