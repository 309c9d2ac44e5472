"""The wheel, installed into fresh environments outside of the tree, as a user has it.

These need a registry to install dependencies from and are skipped where there is none.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MOST_BYTES = 60 << 20  # of what the base install brings with it
OUT_OF_REACH = ("No matching distribution", "Could not find a version", "Temporary failure")
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # a fresh environment's own

pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False
    )


def build(folder: Path, kind: str) -> Path:
    """The wheel or the sdist of the working tree."""
    done = run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, folder=ROOT)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"), "wheel")


def environment(folder: Path, wheel: str) -> Path:
    """A fresh environment with `wheel` in it; where its programs are."""
    venv.create(folder)  # this interpreter's pip serves it, too
    programs = folder / "bin"
    pip: Sequence[str | Path] = (sys.executable, "-m", "pip", "--python", programs / "python")
    done = run(*pip, "install", "--quiet", "--retries", "2", "--no-compile", wheel, folder=folder)
    if any(text in done.stderr for text in OUT_OF_REACH):
        pytest.skip("no registry to install dependencies from")
    assert done.returncode == 0, done.stderr
    return programs


def installed_bytes(programs: Path) -> int:
    """What the environment holds beside the tools that it was made with and ourselves."""
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    ours = ("dledger", "dledger_cli", "store", "broker", "chaos", "audit")
    return sum(
        file.stat().st_size
        for top in packages.iterdir()
        if not top.name.startswith(TOOLS) and top.name not in ours
        for file in ([top] if top.is_file() else top.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    )


def readme_example() -> str:
    """The Python program in the README."""
    (program,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return str(program)


# Each example of the guide as a program of its own, one after the other.
TRYING = """
import re, sys
for number, example in enumerate(re.findall(r"```python\\n(.*?)```", sys.stdin.read(), re.S), 1):
    exec(compile(example, f"example {number}", "exec"), {"addresses": sys.argv[1]})
    print(f"example {number} has run")
"""
TRYING_ON_FAKES = """
import subprocess, sys
from dledger.testing import BlockingFakeGroup
with BlockingFakeGroup() as group:
    sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1], group.addresses]))
"""


# Every codec that a producer somewhere may have chosen, with nothing installed but the client.
CODECS = """
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.compression import LEVELS, Codec, compress, decompress
from dledger.records.errors import BodyUnreadable
for codec in Codec:
    for body in (b"", b"x", b"a line, again and again" * 1_000, bytes(MAX_MESSAGE_BYTES)):
        for level in (LEVELS[codec][0], LEVELS[codec][-1]):
            assert decompress(compress(body, codec, level), codec.sysflag) == body
    stored = compress(b"a line, again and again" * 1_000, codec, 1)
    for bad in (b"garbage", stored[:-1], stored + b"x", compress(bytes(64 << 20), codec, 1)):
        try:
            decompress(bad, codec.sysflag)
        except BodyUnreadable:
            continue
        raise AssertionError(f"{codec}: {bad[:20]}")
assert compress(bytes(1 << 20), Codec.LZ4, 0)[4] & 0xE1 == 0x60  # as Java's library reads it
"""


def guide_tried(python: Path, *arguments: str, folder: Path) -> None:
    """What the guide shows works, outside of the tree, with what is installed there."""
    guide = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [python, "-c", *arguments],
        cwd=folder,
        input=guide,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has run") == guide.count("```python") >= 8


@pytest.mark.long
def test_base_install_is_the_client(tmp_path: Path, wheel: Path) -> None:
    """Small, typed for its users, all that the guide needs, and `dledger` says what it lacks."""
    programs = environment(tmp_path / "env", str(wheel))
    assert installed_bytes(programs) <= MOST_BYTES
    done = run(programs / "dledger", "--help", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "dledger[node]" in done.stderr

    user = tmp_path / "user"
    user.mkdir()
    (user / "example.py").write_text(readme_example(), encoding="utf-8")
    mypy: Sequence[str | Path] = (sys.executable, "-P", "-m", "mypy", "--strict")
    python = programs / "python"
    done = run(*mypy, "--python-executable", python, "example.py", folder=user)
    assert done.returncode == 0, done.stdout
    guide_tried(python, TRYING_ON_FAKES, TRYING, folder=user)
    done = run(python, "-c", CODECS, folder=user)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_extra_brings_the_program(tmp_path: Path, wheel: Path) -> None:
    """A group is started, asked and stopped by what was installed, and is all that the guide and
    the README's program need."""
    programs = environment(tmp_path / "env", f"{wheel}[node]")
    user = tmp_path / "user"
    (user / "broker").mkdir(parents=True)
    (user / "broker" / "__init__.py").write_text("raise SystemExit('not this one')\n")
    try:
        done = run(programs / "dledger", "group", "up", folder=user)
        assert done.returncode == 0, done.stderr
        done = run(programs / "dledger", "group", "status", folder=user)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("yes") == 3
        addresses = ",".join(re.findall(r"127\.0\.0\.1:\d+", done.stdout))
        guide_tried(programs / "python", TRYING, addresses, folder=user)
        program = readme_example().replace("127.0.0.1:7001,127.0.0.1:7002", addresses)
        done = run(programs / "python", "-c", program, folder=user)
        assert (done.returncode, len(done.stdout.strip())) == (0, 32), done.stderr
    finally:
        done = run(programs / "dledger", "group", "down", "--wipe", folder=user)
    assert done.returncode == 0, done.stderr


def test_wheel_has_what_pages_and_sessions_read(wheel: Path) -> None:
    """Templates, styles and Spark's logging: files that no import would miss."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("audit/showing/templates", "chaos/real/templates"):
        files = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
        assert files
        assert files <= names
    assert "dledger/spark/log4j2.properties" in names


@pytest.mark.long
def test_sdist_has_what_a_reader_wants(tmp_path: Path) -> None:
    """Sources, tests, documents and examples, each once, and nothing that a tool left behind."""
    with tarfile.open(build(tmp_path / "dist", "sdist")) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert len(names) == len(set(names))
    for wanted in ("README.md", "Makefile", "examples/produce_and_consume.py", "dledger/py.typed"):
        assert wanted in names
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|\.log$|^run/", name)]
