"""The commands behind the Makefile: their options and actions."""

import argparse
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, NoReturn

import yaml

from attnlab import measurement
from attnlab.base import files, paths
from attnlab.base.errors import Slower, UserError, suggestion
from attnlab.base.version import VERSION
from attnlab.compile import check
from attnlab.runs import read, schema, write
from attnlab.study import implementations, studies


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    The status is 1 after an error, which is reported in one line. It is 3 if `compare` had to fail on slower cases and
    found some, and 130 if Ctrl-C or SIGTERM interrupted a measurement.

    Raises:
        KeyboardInterrupt: Ctrl-C outside of a measurement.
        SystemExit: the arguments can't be parsed; the status is 2.
    """
    warnings.filterwarnings("ignore", category=FutureWarning)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII terminal has no µ
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except UserError as error:
        print(f"attnlab: {str(error).replace(chr(10), ' ')}", file=sys.stderr)
        return error.status
    except (OSError, MemoryError) as error:
        said = "this takes more memory than there is; what was recorded is kept"
        if isinstance(error, OSError):
            what = ": ".join(str(part) for part in (error.strerror or error, error.filename) if part)
            others = "ATTNLAB_DATA, ATTNLAB_REPORTS and ATTNLAB_EXPORTS name other folders"
            said = f"{what}; what was recorded is kept; {others}"
        print(f"attnlab: {said}", file=sys.stderr)
        return 1
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, like all other errors."""

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        """Parse as argparse does, but report unknown arguments here: the parent parser knows fewer options."""
        found, unknown = super().parse_known_args(*given, **named)
        if unknown:
            near = suggestion(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"attnlab: {' '.join(message.split())}; `python -m {self.prog} --help` lists what there is\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="attnlab", description="Is your attention kernel really faster?", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"attnlab {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., object], about: str, run: str = "") -> Callable[..., object]:
        one = commands.add_parser(name, help=about, allow_abbrev=False)
        one.set_defaults(command=command)
        if run:
            one.add_argument("--run", required=True, help=run)
        return one.add_argument

    option = add("measure", _measure, "measure a study into a new run, or continue a run that was cut off")
    option("--run", default="", help="name of a run in data/")
    option("--study", default="", help="a study in studies/, or a path to a YAML file")
    option("--device", default="auto", choices=measurement.DEVICES, help="where to measure")
    option("--gpus", default="", help="on how many GPUs of this host, or all; one without it")
    option("--scheduler", default="", help="the address of the Dask scheduler of a cluster to measure on")
    option("--long", action="store_true", help="measure it even if that takes longer than a day")
    option = add("report", _report, "render a recorded run; measures nothing")
    option("--run", default="", help="name of a run in data/; the published one without it")
    option = add("notebook", _notebook, "execute and render one notebook")
    option("name", help="such as 02_baseline")
    pairs = {"dest": "parameters", "type": _pairs, "action": "extend", "default": [], "metavar": "PARAMS"}
    option("-p", **pairs, help="NAME=VALUE pairs")
    one = "name of a run in data/"
    add(
        "readme",
        _readme,
        "write the READMEs' pictures and tables from recorded runs",
        "names of runs in data/, by commas",
    )
    add("explore", _explore, "write one interactive page of a recorded run", one)
    add("export", _export, "write a recorded run as two JSON files and NumPy arrays", one)
    add("close", _close, "close a run that was cut off with the replicates that it holds", one)
    about = "write the table of what attnlab.attend calls at each shape, from runs"
    option = add("dispatch", _dispatch, about, "names of runs in data/, by commas")
    option("--replace", action="store_true", help="write over another table of this device")
    option = add("compare", _compare, "judge each case of a run against the same case of the run before it")
    option("before", metavar="A", help="name of a run in data/")
    option("after", metavar="B", help="name of the run that is judged")
    option("--markdown", action="store_true", help="print it for a pull request")
    option("--fail-if", choices=["slower"], help="exit with status 3 if any case is slower")
    option = add(
        "kernels",
        lambda options: check.check(options.rung),
        "compile every kernel for every architecture; needs no GPU",
    )
    option("--rung", default="", help="the name of the only one to compile")
    about = "choose the kernel that kernel.best runs at each shape; needs an NVIDIA GPU"
    add("tune", lambda _: print(f"wrote {paths.shown(measurement.tuned())}"), about)
    add("calibrate", _calibrate, "simulate how often the inference is wrong")
    return parser


def _measure(options: argparse.Namespace) -> None:
    from attnlab import frames
    from attnlab.tables import statement

    stated = options.study
    if options.run and (schema.folder(options.run) / "manifest.json").is_file():
        manifest = read.read_manifest(options.run)
        study = studies.parse(manifest["study"], options.run)
        if stated and studies.load(stated) != study:
            of = f"the run {options.run!r} is of the study {study.name!r}"
            raise UserError(f"{of}: leave STUDY out, or name a new run")
        write.require_incomplete(options.run, manifest)  # on any device
    elif options.run and not stated and (begun := write.begun(options.run)):
        study = studies.parse(begun["study"], options.run)
    else:
        stated = stated or measurement.default_study(options.device, bool(options.gpus or options.scheduler))
        study = studies.load(stated)
    where = options.gpus, options.scheduler
    name = measurement.measured(options.run, study, options.device, options.long, *where, stated=stated)
    print(f"recorded {paths.shown(schema.folder(name))}/")
    run = frames.load(name)
    baseline, target = run.manifest["study"]["baseline"], frames.target(run)
    at = run.samples[frames.is_equal(run.samples, target)]
    if baseline not in at["implementation"].unique():
        print(f"{baseline} has no latency at the study's target, so nothing is compared there")
        return
    for _, row in frames.compare(at, baseline).iterrows():
        print(statement(row))


def _close(options: argparse.Namespace) -> None:
    write.close_early(options.run)
    print(f"closed {paths.shown(schema.folder(options.run))}/")


def _report(options: argparse.Namespace) -> None:
    from attnlab import report

    print(f"rendered {paths.shown(report.render(options.run))}")


def _explore(options: argparse.Namespace) -> None:
    from attnlab import explorer, frames

    files.require_writable(paths.reports(), "ATTNLAB_REPORTS")
    run = frames.load(options.run)
    page = paths.reports() / run.name / "explore.html"
    explorer.write(run, page)
    print(f"wrote {paths.shown(page)}")


def _notebook(options: argparse.Namespace) -> None:
    from attnlab import report

    values = dict(map(_assignment, options.parameters))
    if len(values) < len(options.parameters):
        raise UserError(f"-p states a parameter twice: leave one of {', '.join(options.parameters)} out")
    page = report.render(str(values.pop("run", "")), [options.name], parameters=values)
    print(f"rendered {paths.shown(page)}")


def _readme(options: argparse.Namespace) -> None:
    from attnlab import readme

    _require_checkout()
    print(f"wrote {', '.join(map(paths.shown, readme.update(*options.run.split(','))))}")


def _export(options: argparse.Namespace) -> None:
    from attnlab import export

    print(f"exported {paths.shown(export.export(options.run))}/")


def _dispatch(options: argparse.Namespace) -> None:
    from attnlab import frames
    from attnlab.runs import dispatch
    from attnlab.serving import choices

    several = [frames.load(run) for run in options.run.split(",")]
    device, before, replaced = several[0].manifest["device"]["name"], None, ""
    with suppress(UserError):  # there is no table, or an invalid one
        before = dispatch.load(dispatch.path(device), device)
    made = choices.table(*several, before=before)
    if before is not None:
        by, where = f"{before.run!r}, {before.timing}", paths.shown(dispatch.path(device))
        if before != made and not options.replace:
            raise UserError(f"{where} is by {by}: add REPLACE=1 (--replace) to write over it")
        gone = len({choice.shape for choice in before.choices} - {choice.shape for choice in made.choices})
        replaced = f"; it replaces the table by {by}" + (f", and has not {gone} of its shapes" if gone else "")
    table = dispatch.write(made)
    fallback = implementations.FALLBACK
    others = sum(choice.implementation != fallback for choice in made.choices)
    study = table.with_suffix(".yaml")
    study.write_text(yaml.safe_dump(choices.study(made), sort_keys=False, default_flow_style=None, width=120))
    print(
        f"wrote {paths.shown(table)} by {made.run!r}, {made.timing}: {len(made.choices)} shapes, {others} of them "
        f"not by {fallback}; `make measure STUDY={paths.shown(study)}` measures attnlab.attend at each{replaced}"
    )
    for cost in made.regret:
        print(
            f"{cost.clock}: at {cost.shapes} shapes drawn at random, choices take {cost.mean_pct:.3g} % longer than "
            f"the best in the mean, {cost.worst_pct:.3g} % at most, {cost.certain_pct:.3g} % where that is certain; "
            f"they lead {fallback} by {cost.lead:.3f} in the mean, {cost.least_lead:.3f} at least"
        )
    if made.dropped:
        print(f"{len(made.dropped)} more drawn shapes ran other kernels: tools/gpu/lacking.py writes a study of them")


def _compare(options: argparse.Namespace) -> None:
    from attnlab import frames
    from attnlab.tables import markdown, significant

    if not (options.before and options.after) or options.before == options.after:
        same = f", and both are {options.before!r}" if options.before and options.after else ""
        raise UserError(f"two runs are compared{same}: name the one before as A and the one that is judged as B")
    cases = frames.compare_runs(frames.load(options.before), frames.load(options.after))
    counts = cases["decision"].value_counts()
    said = ", ".join(f"{counts.get(name, 0):,} {name}" for name in ("faster", "slower", "equivalent", "inconclusive"))
    print(f"{len(cases):,} cases of {options.after} against {options.before}: {said}")
    moved = cases[cases["decision"].isin(["faster", "slower"])].sort_values("speedup")
    columns = ["implementation", *(a for a in frames.AXES if moved[a].nunique() > 1), *frames.TIMING]
    columns += ["before_us", "after_us", "speedup", "low", "high", "noise", "decision"]
    shown = moved[columns].map(lambda value: significant(value, 4) if isinstance(value, float) else str(value))
    if len(moved):
        print(markdown(shown) if options.markdown else shown.to_string(index=False))
    if (slower := int(counts.get("slower", 0))) and options.fail_if:
        raise Slower(f"{slower} of {len(cases)} cases are slower in {options.after!r}")


def _calibrate(options: argparse.Namespace) -> None:
    from attnlab import simulate

    _require_checkout()
    print(f"wrote {paths.shown(simulate.write())}")


def _require_checkout() -> None:
    if not (paths.ROOT / "Makefile").is_file():
        raise UserError("this writes files of the project, and attnlab is installed here: run it in a checkout")


def _pairs(text: str) -> list[str]:
    """The words of a text. Words in quotes stay together, and the quotes stay for YAML."""
    piece = r"""[^\s'"]|'[^']*'|"[^"]*\""""
    if not re.fullmatch(rf"(?:\s|{piece})*", text):
        raise argparse.ArgumentTypeError(f"takes NAME=VALUE pairs, and a quote in {text!r} isn't closed")
    return re.findall(rf"(?:{piece})+", text)


def _assignment(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"-p takes NAME=VALUE, not {text!r}")
    try:
        return name, yaml.safe_load(value) if value else ""
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"-p {name}: {value!r} is not a value; quote it") from None
