"""Tunings: the nearest choice, invalid files, and the changes that alter a tuning's hash."""

import json
from itertools import product

import ladders
import pytest
from conftest import told
from ladders import TILE, choice, rung, tuned

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.study import ladder, studies, tuning
from attnlab.study.shapes import Shape

H200 = "NVIDIA H200"
SHORT = TILE | {"name": "short", "longest": 100}
LONG = TILE | {"name": "long", "shortest": 50}


@pytest.fixture(autouse=True)
def kernels(folder):
    """A folder that replaces the project's kernels: a kernel with 2 tiles, and one with a single tile."""
    return ladders.write(folder, rung(SHORT, LONG), rung(name="other"))


# The nearest choice


@pytest.mark.parametrize(
    ("axes", "heads", "seq_len"),
    [
        ({"seq_len": 512}, 8, 512),
        ({"seq_len": 750}, 8, 1024),  # beyond the geometric mean, 724
        ({"seq_len": 100_000}, 128, 4096),
        ({"batch": 4, "heads": 10, "seq_len": 512}, 128, 512),  # beyond 32 heads
        ({"batch": 3, "heads": 10, "seq_len": 512}, 8, 512),
        ({"batch": 3, "heads": 10, "seq_len": 760}, 8, 1024),  # 1.9 doublings of heads and 0.4 of length
    ],
)
def test_the_nearest_in_doublings_of_length_and_heads_is_chosen(axes, heads, seq_len):
    made = tuned(choice(), choice(seq_len=1024), choice(heads=128), choice(heads=128, seq_len=4096))
    found = made.choice(Shape(**{"batch": 1, "heads": 8, "head_dim": 64} | axes))
    assert (found.heads, found.seq_len) == (heads, seq_len)


def test_only_the_same_head_dim_and_mask_count():
    far = choice(heads=1, seq_len=64)
    others = [choice(causal=True), choice(head_dim=128)]
    assert tuned(*others, far).choice(Shape(1, 8, 512, 64)) == far
    said = told(lambda: tuned(*others).choice(Shape(1, 8, 512, 64)))
    assert said == f"the tuning of {H200} chose nothing that serves (1, 8, 512, 64) float16"


def test_a_tile_that_does_not_serve_the_length_is_passed_over():
    made = tuned(choice("short", seq_len=96), choice("long", seq_len=512))
    tiles = [made.choice(Shape(1, 8, keys, 64)).tile for keys in (96, 100, 101, 49)]
    assert tiles == ["short", "short", "long", "short"]
    with pytest.raises(UserError, match=r"chose nothing that serves \(1, 8, 49, 64\) float16$"):
        tuned(choice("long")).choice(Shape(1, 8, 49, 64))


@pytest.mark.parametrize(("batch", "full", "causal"), [(1, "short", "long"), (2, "long", "long"), (3, "long", "long")])
def test_of_what_is_tuned_nearby_the_one_expected_to_be_the_fastest_is_chosen(kernels, batch, full, causal):
    # With 2 items a head, the first takes 1, 2 and 3 rounds of 10 us for 8, 16 and 24 heads. With 1 item, the second
    # takes 0.65, 1 and 1.65 rounds of 17.5 us: a half-full last round costs 0.3 + 0.7 / 2.
    ladders.write(kernels, rung(SHORT, LONG | {"rows": 128}))
    near = {"short": 20.0, "long": 17.5}
    stated = product(near.items(), (False, True))
    made = tuned(*(choice(tile, heads=16, seq_len=96, latency_us=us, causal=mask) for (tile, us), mask in stated))
    assert [made.choice(Shape(batch, 8, 96, 64, mask)).tile for mask in (False, True)] == [full, causal]


@pytest.mark.parametrize(
    ("lazy_us", "queries", "keys", "chosen"),
    [
        (10.6, 512, 512, "lazy"),
        (10.7, 512, 512, "other"),
        (10.6, TILE["keys"], TILE["keys"], "other"),
        (10.6, 64, 512, "lazy"),  # keys may be split
    ],
)
def test_a_kernel_whose_time_depends_on_values_counts_less_than_its_slowest(kernels, lazy_us, queries, keys, chosen):
    views = {"arguments": "tensor maps", "parameters": "problem"}
    ladders.write(kernels, rung(TILE), rung(name="other", **views), rung(name="lazy", **views))
    shape = Shape(1, 8, queries, 64, kv_len=keys)
    place = tuning.place(shape, 16)._asdict() | {"tile": ""}
    near = [choice(rung=name, latency_us=us, **place) for name, us in (("other", 10.0), ("lazy", lazy_us))]
    assert tuned(*near).choice(shape).rung == chosen


@pytest.mark.parametrize("special", [{"kv_heads": 2}, {"kv_len": 600}, {"layout": "tokens first"}, {"scale": 0.5}])
def test_what_takes_no_views_is_passed_over_where_tensors_are_not_plain(kernels, special):
    ladders.write(kernels, rung(LONG), rung(name="views", arguments="tensor maps", parameters="problem"))
    views = choice("", rung="views", latency_us=5.0)
    made = tuned(choice(), views)
    assert made.choice(Shape(1, 8, 512, 64)).tile == "long"
    assert made.choice(Shape(1, 8, 512, 64, **special)) == views
    assert made.choice(Shape(1, 8, 512, 64, values="rising 24")) == made.choice(Shape(1, 8, 512, 64)) == choice()


FEW = {"seq_len": 1, "kv_len": 1000, "heads": 8, "kv_heads": 2}


@pytest.mark.parametrize(
    ("axes", "chosen"),
    [
        ({}, "few"),
        ({"seq_len": 10}, "many"),  # 40 rows are nearer to 64 than to 4
        ({"seq_len": 60, "kv_len": 4000}, "many"),
        ({"seq_len": 65}, "plain"),
        ({"seq_len": 8, "kv_len": 8}, "plain"),  # as many queries as keys
        ({"scale": 0.5}, "few"),
    ],
)
def test_choices_at_few_queries_are_for_few_queries_alone(kernels, axes, chosen):
    views = [rung(TILE, name=name, arguments="tensor maps", parameters="problem") for name in ("few", "many", "plain")]
    ladders.write(kernels, *views)
    at = {"few": {"heads": 2, "seq_len": 900, "rows": 4}, "many": {"heads": 2, "seq_len": 900, "rows": 64}}
    made = tuned(*(choice("", rung=name, **at.get(name, {})) for name in ("few", "many", "plain")))
    assert made.choice(Shape(**{"batch": 1, "head_dim": 64} | FEW | axes)).rung == chosen


def test_a_kernel_that_splits_keys_runs_the_tile_for_the_rows_at_hand(kernels):
    tiles = [TILE | {"name": f"rows_{rows}", "rows": rows} for rows in (16, 64, 128)]
    ladders.write(kernels, rung(*tiles, parameters="packing", merge="merge"))
    made = tuned(choice("rows_16", heads=2, seq_len=900, rows=16))
    chosen = [made.choice(Shape(1, 8, n, 64, kv_heads=2, kv_len=2000)).tile for n in (1, 5, 16, 200)]
    assert chosen == ["rows_16", "rows_64", "rows_64", "rows_128"]


def test_at_a_head_dim_without_a_choice_the_last_kernel_that_was_chosen_elsewhere_serves(kernels):
    views, wide = {"arguments": "tensor maps", "parameters": "problem"}, TILE | {"head_dim": 256, "name": "wide"}
    last, other = rung(LONG, wide | {"longest": 999}, name="views", **views), rung(wide, name="other")
    ladders.write(kernels, rung(LONG, wide), last, other)
    stated, shape = [choice(), choice(rung="views", causal=True)], Shape(1, 8, 512, 256)
    made, old = tuned(*stated), tuned(*stated)
    served = [shape, shape.resized(seq_len=1, kv_len=512, kv_heads=2), shape.resized(seq_len=2000)]
    assert [found.rung for found in map(made.choice, served)] == ["views", "views", "plain"]
    assert tuned(*stated, choice("wide", head_dim=256)).choice(shape).rung == "plain"
    for refused in (shape.resized(head_dim=128), shape.resized(kv_len=1000)):
        with pytest.raises(UserError, match="chose nothing that serves"):
            made.choice(refused)
    ladders.write(kernels, rung(LONG, wide), last | {"title": "changed"}, other)
    assert told(lambda: old.choice(shape)).startswith("kernel.views changed since it was tuned")


def test_head_dim_256_splits_keys_where_they_may_be_split_and_is_lazy_elsewhere(monkeypatch):
    monkeypatch.setenv("ATTNLAB_KERNELS", str(paths.ROOT / "kernels"))
    made = tuned(*(choice(one.tiles[0].name, rung=one.name) for one in ladder.drawn()))
    wide = [shape for shape in studies.load("dispatch").swept_shapes if shape.head_dim == 256]
    assert min(shape.seq_len for shape in wide) == 1
    splits = [shape for shape in wide if tuning.packed_rows(shape, made.multiprocessors)]
    assert 0 < len(splits) < len(wide)
    for shape in wide:
        assert made.choice(shape).rung == ("few" if shape in splits else "lazy")


def test_a_kernel_that_replaces_another_runs_by_its_choices_and_counts_as_another(kernels):
    made, (before, *_) = tuned(choice()), ladder.load()
    entries = [rung(SHORT, LONG, title="faster"), rung(name="other")]
    ladders.write(kernels, *entries)
    own = ladder.own_hash(ladder.load()[0])
    ladders.write(kernels, entries[0] | {"replaces": {own: ladder.own_hash(before)}}, entries[1])
    again = tuned(choice()).model_copy(update={"sources": made.sources})
    assert again.running(Shape(1, 8, 512, 64)) == f"plain long {ladder.own_hash(before)}"
    assert ladder.hashes()["kernel.plain"] == own != made.sources["kernel.plain"]
    ladders.write(kernels, entries[0] | {"replaces": {own: "one before"}}, entries[1])
    assert made.model_copy().running(Shape(1, 8, 512, 64)) == ""


def test_a_kernel_that_changed_is_not_run_under_an_old_choice(kernels):
    mine, other, gone = choice(), choice("", rung="other", seq_len=64), choice(rung="gone", seq_len=32)
    made = tuned(mine, other, gone)
    (kernels / "ladder.toml").write_text((kernels / "ladder.toml").read_text().replace('"long"', '"longer"'))
    for changed in (mine, gone):
        with pytest.raises(UserError, match=rf"^kernel\.{changed.rung} changed since it was tuned: run `make tune`$"):
            made.choice(Shape(1, 8, changed.seq_len, 64))
    assert made.choice(Shape(1, 8, 64, 64)) == other


# The file


def test_a_device_has_its_file(kernels):
    made = tuned(choice(), choice("short", seq_len=64))
    path = tuning.write(made)
    assert path == kernels / "tuned" / "nvidia-h200.json" == tuning.path(" NVIDIA  H200")
    assert tuning.load(H200) == made
    tuning.write(tuned(choice()))
    assert tuning.load(H200) == tuned(choice())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_device_without_a_file_says_what_to_do():
    tuning.write(tuned(choice()))
    assert told(lambda: tuning.load("NVIDIA L4")) == "no tuning for NVIDIA L4: run `make tune`"
    tuning.path("NVIDIA L4").mkdir()
    assert told(lambda: tuning.load("NVIDIA L4")).endswith("nvidia-l4.json can't be read: Is a directory")


def stated(**changes) -> dict:
    return tuned(choice()).model_dump(mode="json") | changes


BAD = {
    "torn": (lambda: json.dumps(stated())[:99].encode(), "is no tuning: `make tune` writes one"),
    "no text": (lambda: b"\xff\xfe", "is no tuning: `make tune` writes one"),
    "another version": (lambda: stated(version=3), "is no tuning: version: input should be 4, not 3"),
    "a field too many": (
        lambda: stated(devise="x"),
        "is no tuning: unknown field 'devise'; fields are version, device, multiprocessors, torch, command, clock, "
        "sources, choices; did you mean 'device'?",
    ),
    "no latency": (
        lambda: stated(choices=[choice().model_dump() | {"latency_us": 0.0}]),
        "is no tuning: choices.0.latency_us: input should be greater than 0, not 0.0",
    ),
    "an instance twice": (
        lambda: stated(choices=2 * stated()["choices"]),
        "is no tuning: choices: two are for one shape and one instance: leave one",
    ),
    "another device": (
        lambda: stated(device="NVIDIA L4"),
        "was made on NVIDIA L4, and this is NVIDIA H200: run `make tune`",
    ),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_tuning_of_this_device_is_told_in_a_line(content, said):
    path, written = tuning.path(H200), content()
    path.parent.mkdir()
    path.write_bytes(written if isinstance(written, bytes) else json.dumps(written).encode())
    assert told(lambda: tuning.load(H200)) == f"{paths.shown(path)} {said}"


# The hash


def test_the_best_is_its_choices_and_the_kernels_that_they_name(kernels):
    names = ["sdpa.auto", "kernel.plain", "kernel.best", "kernel.gone"]
    plain = ladder.hashes()["kernel.plain"]
    assert tuning.hashes(names, H200) == {"kernel.plain": plain}
    path = tuning.write(tuned(choice()))
    before = tuning.hashes(names, H200)
    assert list(before) == ["kernel.plain", "kernel.best"]
    assert tuning.hashes(["kernel.plain"], H200) == {"kernel.plain": plain}
    assert tuning.hashes(names, "NVIDIA L4") == {"kernel.plain": plain}
    seen = {before["kernel.best"]}
    whole = (kernels / "ladder.toml").read_text()
    # A kernel that it doesn't name makes no difference.
    ladders.write(kernels, rung(SHORT, LONG), rung(name="other", title="another"))
    assert tuning.hashes(names, H200) == before
    ladders.write(kernels, rung(SHORT, LONG, title="another"), rung(name="other"))
    seen.add(tuning.hashes(names, H200)["kernel.best"])
    (kernels / "ladder.toml").write_text(whole)
    path.write_bytes(path.read_bytes() + b"\n")  # nor does the layout of the file
    assert tuning.hashes(names, H200) == before
    tuning.write(tuned(choice(latency_us=9.0)))
    seen.add(tuning.hashes(names, H200)["kernel.best"])
    assert len(seen) == 3


def test_a_broken_tuning_matters_only_to_those_who_name_the_best():
    tuning.path(H200).parent.mkdir()
    tuning.path(H200).write_text("{")
    assert list(tuning.hashes(["kernel.plain"], H200)) == ["kernel.plain"]
    assert told(lambda: tuning.hashes(["kernel.best"], H200)).endswith("is no tuning: `make tune` writes one")
