"""Print a study of the shapes that a device's dispatch table lacks, or where `kernel.best` runs something else since.

``python tools/gpu/lacking.py 'NVIDIA H200' --seed 20261130 --drawn 40 > anew.yaml`` takes shapes and all else from the
study `dispatch`, and draws as many fresh shapes by that seed, to judge by. Shapes that runs of the table drew and the
table left out are measured again; these runs have to be in data/. After ``make measure STUDY=anew.yaml``, its run joins
the others in ``make dispatch RUN=... REPLACE=1``.
"""

import argparse

import yaml

from attnlab.base.errors import UserError
from attnlab.runs import dispatch, read
from attnlab.serving.choices import axes
from attnlab.study import studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="its name, as the table states it")
    parser.add_argument("--seed", type=int, required=True, help="that no run of the table drew by")
    parser.add_argument("--drawn", type=int, default=40)
    arguments = parser.parse_args()
    try:
        made = dispatch.load(dispatch.path(arguments.device), arguments.device)
        before = [studies.recorded(read.read_manifest(run)) for run in made.run.split(",")]
    except UserError as error:
        raise SystemExit(str(error)) from None
    study = studies.load("dispatch")
    lacking = [shape for shape in study.swept_shapes if not made.still_runs(shape)]
    drawn = dict.fromkeys(shape.plain for one in before for shape in one.drawn_shapes)
    again = [shape for shape in drawn if not made.still_runs(shape)]
    if not lacking + again:
        raise SystemExit(f"the dispatch table of {arguments.device} lacks no shape: it needs no new run")
    of = study.model_dump(mode="json", exclude={"name"}, exclude_unset=True)
    of |= {"title": f"{study.title}, where a table lacks it", "replicates": 1, "target": axes((lacking + again)[0])}
    of["drawn"] |= {"shapes": arguments.drawn, "seed": arguments.seed}
    each = {"anew": lacking, "drawn again": [s.resized(values=kind) for s in again for kind in of["drawn"]["values"]]}
    of["sweeps"] = {name: [*map(axes, shapes)] for name, shapes in each.items() if shapes}
    print(yaml.safe_dump(of, sort_keys=False, default_flow_style=None, width=120), end="")


if __name__ == "__main__":
    main()
