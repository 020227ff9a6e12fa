"""The command line behind the Makefile: measure, report, notebook, export, kernels."""

import argparse
import sys
import warnings
from typing import NoReturn

import yaml

from attnlab import builds, obtain, paths, runs, studies
from attnlab.errors import Interrupted, UserError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a UserError becomes one line and exit status 1, a word that is none 2, Ctrl-C 130."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except UserError as error:
        print(f"attnlab: {str(error).replace(chr(10), ' ')}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1
    except KeyboardInterrupt:
        print("attnlab: interrupted; what was recorded is kept", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"attnlab: {error.strerror or error}: {error.filename or ''}; what was recorded is kept", file=sys.stderr)
        return 1
    return 0


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"attnlab: {' '.join(message.split())}; `python -m {self.prog} --help` tells what there is\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="attnlab", description="Is your attention kernel really faster?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, about in (
        ("measure", _measure, "measure a study into a run"),
        ("report", _report, "render a recorded run, or measure one and render it"),
    ):
        sub = commands.add_parser(name, help=about)
        sub.add_argument("--run", default="", help="name of a run in data/")
        sub.add_argument("--study", default="", help="a study in notebooks/params/, or a path to a YAML file")
        sub.add_argument("--device", default="auto", choices=obtain.DEVICES[:3])
        sub.set_defaults(command=command)
    notebook = commands.add_parser("notebook", help="execute and render one notebook")
    notebook.add_argument("name", help="such as 02_baseline")
    notebook.add_argument("-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE")
    notebook.set_defaults(command=_notebook)
    kernels = commands.add_parser("kernels", help="compile every kernel for every architecture; needs no GPU")
    kernels.set_defaults(command=_kernels)
    readme = commands.add_parser("readme", help="write the README's picture and table from a recorded run")
    readme.add_argument("--run", required=True)
    readme.set_defaults(command=_readme)
    export = commands.add_parser("export", help="write a recorded run as JSON, NumPy arrays and a report in Markdown")
    export.add_argument("--run", required=True)
    export.set_defaults(command=_export)
    close = commands.add_parser("close", help="close a run that was cut off with the replicates that it holds")
    close.add_argument("--run", required=True)
    close.set_defaults(command=_close)
    dispatch = commands.add_parser("dispatch", help="write from a run what attnlab.attend calls at which shape")
    dispatch.add_argument("--run", required=True)
    dispatch.set_defaults(command=_dispatch)
    calibrate = commands.add_parser("calibrate", help="simulate how often the inference is wrong")
    calibrate.set_defaults(command=_calibrate)
    return parser


def _measure(options: argparse.Namespace) -> str:
    if options.run and (runs.folder(options.run) / "manifest.json").is_file():
        study = studies.parse(runs.read_manifest(options.run)["study"], options.run)
        if options.study and studies.load(options.study) != study:
            raise UserError(
                f"the run {options.run!r} is of the study {study.name!r}: leave STUDY out, or name a new run"
            )
    else:
        study = studies.load(options.study or obtain.default_study(obtain.kind(options.device)))
    name = obtain.measured(options.run, study, options.device)
    print(f"recorded {paths.shown(runs.folder(name))}/")
    return name


def _close(options: argparse.Namespace) -> None:
    runs.close_early(options.run)
    print(f"closed {paths.shown(runs.folder(options.run))}/")


def _report(options: argparse.Namespace) -> None:
    if options.run and (options.study or options.device != "auto"):
        raise UserError("RUN renders what was recorded and measures nothing: leave STUDY and DEVICE out")
    name = options.run or _measure(options)
    from attnlab.report import paper

    page = paper.render(name)
    print(f"rendered {paths.shown(page)}")


def _notebook(options: argparse.Namespace) -> None:
    from attnlab.report import paper

    page = paper.render_notebook(options.name, dict(map(_assignment, options.parameters)))
    print(f"rendered {paths.shown(page)}")


def _kernels(options: argparse.Namespace) -> None:
    builds.check()


def _readme(options: argparse.Namespace) -> None:
    from attnlab.report import readme

    readme.update(paths.ROOT / "README.md", options.run)


def _export(options: argparse.Namespace) -> None:
    from attnlab.analyse import export, results

    run, target = runs.load(options.run), export.folder(options.run)
    export.require_place(target, run.name)
    print(f"{run.name}: inferring from {len(run.samples):,} samples", file=sys.stderr, flush=True)
    export.write(results.of(run), target)
    print(f"exported {paths.shown(target)}/")


def _dispatch(options: argparse.Namespace) -> None:
    from attnlab import dispatch
    from attnlab.analyse import choices, results

    made = choices.table(results.of(runs.load(options.run)))
    table = dispatch.write(made)
    study = table.with_suffix(".yaml")
    study.write_text(yaml.safe_dump(choices.study(made), sort_keys=False, default_flow_style=None, width=120))
    print(
        f"wrote {paths.shown(table)}: {len(made.choices)} shapes, {len(made.chosen())} of them not by "
        f"{dispatch.FALLBACK}; `make measure STUDY={paths.shown(study)}` measures attnlab.attend at each"
    )


def _calibrate(options: argparse.Namespace) -> None:
    from attnlab import calibration

    calibration.write(calibration.run(), calibration.published())
    print(f"wrote {paths.shown(calibration.published())}")


def _assignment(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"-p takes NAME=VALUE, not {text!r}")
    try:
        return name, yaml.safe_load(value) if value else ""
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"-p {name}: {value!r} is not a value; quote it") from None


if __name__ == "__main__":
    sys.exit(main())
