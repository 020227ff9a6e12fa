"""Whether kernels have the machine code that they had at an earlier revision, so that measurements of then hold.

``PYTHONPATH=lib python tools/same_code.py HEAD~3 lazy few`` compiles each instance that these kernels had at that
revision, then and now, and compares the bytes. It needs `make kernels`' packages and no GPU. Where all instances of a
kernel are the same, it prints `same_code` for the entry in kernels/ladder.toml. By it `ladder.hashes` gives the hash
that runs and tables have. Exit status 1 if an instance differs.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import check, nvrtc
from attnlab.study import ladder


def main(revision: str, names: list[str]) -> int:
    with TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "kernels"], check=False, capture_output=True)
        if archive.returncode:
            raise SystemExit(archive.stderr.decode().strip())
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        then = _of_tree(Path(folder, "kernels"), names, [])
        now = _of_tree(paths.kernels(), names, [*{e for _, codes in then.values() for e in codes}])
    differ = 0
    for name in names:
        (before, codes), (after, others) = then[name], now[name]
        unlike = [expression for expression in codes if codes[expression] != others.get(expression)]
        differ += len(unlike)
        print(f"{name}: {len(codes) - len(unlike)} of {len(codes)} instances have the same code")
        for expression in unlike:
            print(f"  {expression} differs")
        if not unlike and after != before:
            print(f'same_code = {{ "{after}" = "{before}" }}')
    return min(differ, 1)


def _of_tree(kernels: Path, names: list[str], among: list[str]) -> dict[str, tuple[str, dict[str, str]]]:
    """The hash of each kernel and the code of its instances, from a process that uses the ladder of this folder."""
    command = [sys.executable, __file__, "--codes", json.dumps(names), json.dumps(among)]
    environment = os.environ | {"ATTNLAB_KERNELS": str(kernels)}
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, env=environment)
    if done.returncode:  # the process printed the reason
        raise SystemExit(1)
    found: dict[str, tuple[str, dict[str, str]]] = json.loads(done.stdout)
    return found


def _codes(name: str, among: list[str]) -> tuple[str, dict[str, str]]:
    rung = ladder.rung(ladder.PREFIX + name)
    expressions = [each for each in check.expressions(rung) if not among or each in among]
    cubin, mangled = nvrtc.cubin(nvrtc.program(rung), rung.source, rung.architectures[-1], expressions)
    sections = _sections(cubin)
    own = ladder.own_hash(rung) if among else ladder.hashes([rung])[rung.implementation]
    return own, {e: hashlib.sha256(sections[f".text.{mangled[e]}"]).hexdigest() for e in expressions}


def _sections(cubin: bytes) -> dict[str, bytes]:
    """The sections of an ELF file by their names."""
    (offset,), (size, count, of_names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<2I4Q", cubin, offset + size * i) for i in range(count)]
    names = headers[of_names][4]
    return {cubin[names + h[0] : cubin.index(0, names + h[0])].decode(): cubin[h[4] : h[4] + h[5]] for h in headers}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--codes"]:
        names, among = map(json.loads, sys.argv[2:])
        try:
            print(json.dumps({name: _codes(name, among) for name in names}))
        except UserError as error:
            raise SystemExit(str(error)) from None
    elif len(sys.argv) > 2:
        raise SystemExit(main(sys.argv[1], sys.argv[2:]))
    else:
        raise SystemExit(__doc__)
