"""Print a study of the shapes at which `kernel.best` runs something else than when a device's dispatch table was made.

``python tools/gpu/changed.py 'NVIDIA H200' --seed 20261130 --drawn 40 > anew.yaml`` takes the rest from the study
`dispatch`, and as many fresh shapes, drawn by that seed, to judge by. After ``make measure STUDY=anew.yaml``, its run
joins the others in ``make dispatch RUN=... REPLACE=1``.
"""

import argparse

import yaml

from attnlab.base import paths
from attnlab.infer.choices import axes
from attnlab.runs import dispatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="its name, as the table states it")
    parser.add_argument("--seed", type=int, required=True, help="that no run of the table drew by")
    parser.add_argument("--drawn", type=int, default=40)
    arguments = parser.parse_args()
    made = dispatch.load(dispatch.path(arguments.device), arguments.device)
    changed = [choice.shape for choice in made.choices if not made.still_runs(choice.shape)]
    if not changed:
        raise SystemExit(f"kernel.best runs what the dispatch table of {arguments.device} was made with at every shape")
    of = yaml.safe_load((paths.ROOT / "studies" / "dispatch.yaml").read_text())
    of |= {"title": f"{of['title']}, where kernel.best changed", "replicates": 1, "target": axes(changed[0])}
    of["drawn"] |= {"shapes": arguments.drawn, "seed": arguments.seed}
    of["sweeps"] = {"anew": [axes(shape) for shape in changed]}
    print(yaml.safe_dump(of, sort_keys=False, default_flow_style=None, width=120), end="")


if __name__ == "__main__":
    main()
