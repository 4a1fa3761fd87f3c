"""The core under AddressSanitizer and UBSan, over the fuzzer's corpus and its seeds."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fuzz"


def fuzzing():
    spec = importlib.util.spec_from_file_location("fuzz", HERE / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler with sanitizers")
def test_no_sanitizer_objects_to_any_known_input(tmp_path):
    fuzz = fuzzing()
    program = tmp_path / "harness"
    if not fuzz.can_build("gcc", tmp_path, "-fsanitize=address,undefined"):
        pytest.skip("this compiler has no sanitizers, or the system no libzstd")
    fuzz.build(program, "gcc", "-fsanitize=address,undefined", "-DSTANDALONE")
    inputs = sorted((HERE / "corpus").iterdir())
    for i, seed in enumerate(fuzz.seeds()):
        inputs.append(tmp_path / f"seed{i}")
        inputs[-1].write_bytes(seed)
    ran = subprocess.run([program, *inputs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert ran.returncode == 0, ran.stdout.decode(errors="replace")[-3000:]


def test_the_python_edge_raises_only_its_own_errors():
    fuzz = fuzzing()
    for seed in fuzz.edge_seeds():
        fuzz.edge(seed)
        for cut in range(0, len(seed), 7):
            fuzz.edge(seed[:cut])
