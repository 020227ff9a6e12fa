"""Runs beside the one that is shown: of the same device, each of a study that answers what others don't."""

from contextlib import suppress

from attnlab import runs
from attnlab.analyse.results import NotMeasured, Results, of
from attnlab.errors import UserError


def of_study(results: Results, study: str) -> Results:
    """The newest recorded run of a study on the device of this run, or this run itself if it is one.

    Raises:
        NotMeasured: there is none.
    """
    if results.study.name == study:
        return results
    device = results.run.manifest["device"]["name"]
    for name in reversed(runs.names()):
        with suppress(UserError):  # a run that is refused is no companion
            manifest = runs.read_manifest(name)
            if manifest["complete"] and _is_one(manifest, study) and manifest["device"]["name"] == device:
                return of(runs.load(name))
    raise NotMeasured(
        f"No run of the study “{study}” on an {device} is there: `make measure STUDY={study}` records one"
    )


def _is_one(manifest: runs.Manifest, study: str) -> bool:
    return bool(manifest["study"]["name"] == study)
