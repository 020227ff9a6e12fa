"""A kernel as a program for NVRTC, NVIDIA's runtime compiler: its options, its errors and its report."""

import hashlib
import math
import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from attnlab.base import paths
from attnlab.base.errors import UserError, suggestion
from attnlab.compile import occupancy
from attnlab.study import ladder
from attnlab.study.ladder import Rung

SHOWN = 3
"""The most errors that a message quotes."""
BY_CUPY = ("-ftz=true", "--device-as-default-execution-space")
"""The options that CuPy adds to every program."""


def program(rung: Rung) -> str:
    """The source of a kernel as a program, see `of_files`."""
    return of_files(ladder.texts(rung))


def of_files(texts: dict[str, str]) -> str:
    """A source as a program: with the file's name for error messages, and a hash of the headers for caches."""
    (name, source), *headers = texts.items()
    included = hashlib.sha256("".join(text for _, text in headers).encode()).hexdigest()
    return f'#line 1 "{paths.shown(paths.kernels() / name)}"\n{source}\n// headers {included}\n'


def flags(architecture: str) -> tuple[str, ...]:
    """The compiler's options, without those that CuPy adds by itself."""
    return (ladder.STANDARD, f"-arch={architecture}", f"-I{paths.kernels()}", "--ptxas-options=-v")


def explained(rung: Rung, expression: str, options: tuple[str, ...], log: str) -> str:
    """The reason why a kernel doesn't compile: its file, the line, the flags and the compiler's message."""
    words, text = errors(log), "".join(map(ladder.code, ladder.texts(rung).values()))
    kernels = re.findall(r"__global__[^;{]*?\b(?!__)([A-Za-z_]\w*)\s*\(", text)
    if rung.function not in kernels and words and all("__nv_name_map" in line for line in words):
        return f"no kernel `{rung.function}` in {rung.source}{suggestion(rung.function, kernels)}"
    more = f" (and {len(words) - SHOWN} more)" if len(words) > SHOWN else ""
    said = "; ".join(words[:SHOWN]) or " ".join(log.split())[:500] or "nothing"
    source = paths.shown(paths.kernels() / rung.source)
    return f"{source} does not compile as {expression} with {' '.join(options)}: {said}{more}"


def errors(log: str) -> list[str]:
    """The lines that hold the compiler's errors, without the lines of explanation that may follow each."""
    # The compiler names headers by the folder that the flag -I gives.
    log = log.replace(f"{paths.kernels()}/", f"{paths.shown(paths.kernels())}/")
    lines = [" ".join(line.split()) for line in log.splitlines()]
    return [line for line in lines if re.search(r"\berror\b", line) and "detected in the comp" not in line]


@dataclass(frozen=True)
class Instance:
    """The compiler's report of an instance of a kernel: registers and spills per thread, shared memory per CTA.

    Attributes:
        parameters: the size of each in bytes.
        most_threads: the most threads of a CTA, by its ``__launch_bounds__``; 0 without them.
    """

    registers: int
    spill_bytes: int
    static_shared_bytes: int
    parameters: tuple[int, ...] = ()
    most_threads: int = 0

    def needs(
        self, architecture: str, threads: int, dynamic_bytes: int, ctas: int, persistent: bool = False
    ) -> dict[str, Any]:
        """The resources of a call of `ctas` CTAs, each with `dynamic_bytes` of dynamic shared memory.

        registers and spill_bytes are per thread, threads and shared_bytes per CTA. ctas is `ctas`, or for a persistent
        kernel at most the number of resident CTAs. If the architecture's limits are known, there are also ctas_per_sm,
        occupancy_pct, waves, and the gpu on which waves are counted.
        """
        shared_bytes = self.static_shared_bytes + dynamic_bytes
        found: dict[str, Any] = {"registers": self.registers, "spill_bytes": self.spill_bytes}
        found |= {"shared_bytes": shared_bytes, "threads": threads, "ctas": ctas}
        if limits := occupancy.LIMITS.get(occupancy.number(architecture)):
            held = occupancy.ctas_per_sm(limits, threads, self.registers, shared_bytes)
            at_once = held * limits.multiprocessors
            found |= {"ctas": min(ctas, at_once) if persistent else ctas, "ctas_per_sm": held}
            found["occupancy_pct"] = 100 * held * threads / occupancy.WARP / limits.warps
            found |= {"waves": found["ctas"] / at_once if held else math.nan, "gpu": limits.gpu}
        return found


@dataclass(frozen=True)
class Build:
    """The outcome of compiling instances of a kernel for one architecture.

    Attributes:
        instances: ptxas's report of each, by name expression; empty if compiling failed.
        error: why compiling failed, in one paragraph; empty if it didn't.
        warnings: ptxas's warnings about lost performance, without duplicates.
    """

    instances: dict[str, Instance]
    error: str = ""
    warnings: tuple[str, ...] = ()


def build(rung: Rung, architecture: str, expressions: list[str]) -> Build:
    """Compile instances of a kernel, without a GPU or a driver; raises as `compiled`."""
    log, instances = compiled(program(rung), rung.source, architecture, expressions)
    if instances is None:
        return Build({}, explained(rung, f"{rung.function}<...>", flags(architecture), log))
    return Build(instances, warnings=warnings(log))


def compiled(text: str, name: str, architecture: str, expressions: list[str]) -> tuple[str, dict[str, Instance] | None]:
    """The log of NVRTC and ptxas for a program, and its instances; None in their place if it doesn't compile.

    Messages name the file `name`. Without `expressions`, the instances are those that C++ doesn't mangle.

    Raises UserError: NVRTC or CUDA's headers are not installed.
    """
    said, names, ptx, _ = _compile(text, name, architecture, expressions)
    if names is None:
        return said, None
    reported = report(said, ptx)
    return said, {e: reported[mangled] for e, mangled in names.items()} if names else reported


def cubin(text: str, name: str, architecture: str, expressions: list[str]) -> tuple[bytes, dict[str, str]]:
    """The machine code of a program as an ELF file, and the mangled name of each instance; arguments as `compiled`.

    Raises:
        UserError: the program doesn't compile; also as `compiled`.
    """
    said, names, _, code = _compile(text, name, architecture, expressions)
    if names is None:
        raise UserError(f"{name} does not compile: {'; '.join(errors(said)) or said}")
    return code, names


def _compile(
    text: str, name: str, architecture: str, expressions: list[str]
) -> tuple[str, dict[str, str] | None, str, bytes]:
    """The log, the mangled names (None if the program doesn't compile), the PTX and the machine code."""
    nvrtc, include = _toolkit()
    words = [word.encode() for word in (*flags(architecture), *BY_CUPY, f"-I{include}")]
    program_ = _checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))

    def got(what: str) -> bytes:
        data = b" " * _checked(getattr(nvrtc, f"nvrtcGet{what}Size")(program_))
        _checked(getattr(nvrtc, f"nvrtcGet{what}")(program_, data))
        return data

    try:
        for expression in expressions:
            _checked(nvrtc.nvrtcAddNameExpression(program_, expression.encode()))
        (result,) = nvrtc.nvrtcCompileProgram(program_, len(words), words)
        said = got("ProgramLog").decode(errors="replace").rstrip("\0 \n")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return said, None, "", b""
        names = {e: _checked(nvrtc.nvrtcGetLoweredName(program_, e.encode())).decode() for e in expressions}
        return said, names, got("PTX").decode(), got("CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program_)


def report(log: str, ptx: str = "") -> dict[str, Instance]:
    """The instances in ptxas's report with ``-v`` and in the PTX's declarations, by mangled name."""
    declared = {name: rest for name, *rest in _ENTRY.findall(ptx)}
    found = {}
    for part in log.split("Compiling entry function")[1:]:
        name, used = re.search(r"'(\w+)'", part), re.search(r"Used (\d+) registers", part)
        if name and used:
            spilled = [int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", part)]
            shared = re.search(r"(\d+) bytes smem", part)
            parameters, directives = declared.get(name[1], ("", ""))
            each = re.findall(r"\.param\b.*?\.[busf](\d+)\b[^\[,]*(?:\[(\d+)\])?", parameters)
            threads = re.search(r"\.maxntid (\d+)", directives)
            found[name[1]] = Instance(
                int(used[1]),
                max(spilled, default=0),
                int(shared[1]) if shared else 0,
                tuple(int(bits) // 8 * int(n or 1) for bits, n in each),
                int(threads[1]) if threads else 0,
            )
    return found


_ENTRY = re.compile(r"\.entry (\w+)\s*\(([^)]*)\)([^{]*)\{")


def warnings(log: str) -> tuple[str, ...]:
    """The lines of ptxas about lost performance and ignored instructions, without duplicates."""
    lines = (" ".join(line.split()) for line in log.splitlines())
    return tuple(dict.fromkeys(line for line in lines if _LOST.search(line)))


# C7508: setmaxnreg is ignored; C7510 and similar codes: wgmma is serialised.
_LOST = re.compile(r"ptxas.*(warning|C75\d\d|wgmma.*serializ|setmaxnreg.*ignored)", re.IGNORECASE)


def version() -> str:
    """The version of the NVRTC package; empty if NVRTC is not installed as a package."""
    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return ""


def _toolkit() -> tuple[Any, str]:
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import find_nvidia_header_directory, load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvrtc")
    except (ImportError, RuntimeError):  # no bindings, or bindings without the library
        nvrtc, include = None, None
    else:
        include = find_nvidia_header_directory("cudart")
    if not nvrtc or not include:
        raise UserError(
            "NVRTC and CUDA's headers are not installed: `make kernels` brings them, as the extra `kernels`"
        )
    return nvrtc, include


def _checked(answer: tuple[Any, ...]) -> Any:
    """The result of a call of NVRTC, without its status."""
    status, *values = answer
    if status.value:
        raise RuntimeError(f"NVRTC: {status.name}")
    return values[0] if values else None
