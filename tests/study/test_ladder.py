"""The ladder: the fields of an entry, the errors for wrong entries, and the changes that alter a kernel's hash."""

import re
from fnmatch import fnmatchcase

import ladders
import pytest
from conftest import told
from ladders import TILE, rung

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.study import implementations, ladder


def refused(folder, named=None) -> str:
    """The error message for a ladder, without its path; or for a named kernel, without the name."""
    said, where = told(ladder.load), f"{folder}/ladder.toml" + (f": rung {named!r}: " if named else "")
    assert said.startswith(where)
    return said.removeprefix(where).lstrip(": ")


# The project's ladder


def test_the_project_has_a_rung_for_each_kernel():
    rungs = ladder.load()
    assert rungs[0].after == ""
    assert all(next(iter(ladder.texts(rung))) == rung.source for rung in rungs)
    forward = {path.name for path in paths.kernels().glob("*.cu")} - {"16_backward.cu"}
    assert sorted(rung.source for rung in rungs) == sorted(forward)


def test_template_arguments_are_named_as_the_kernel_names_them():
    for one in ladder.load():
        source = (paths.kernels() / one.source).read_text()
        declared = re.search(
            rf"template <typename T, int D, bool CAUSAL([^>]*)>\s__global__[^;{{]*\b{one.function}\(", source
        )
        assert declared, one.name
        names = [
            name.lower() for name in re.findall(r"int (\w+)\b(?! = )", declared[1])
        ]  # but for those with a default
        assert all(list(tile.template) == names for tile in one.tiles)


# An entry


def test_a_rung_as_it_was_stated(folder):
    (one,) = ladder.load()
    assert one.implementation == "kernel.plain"
    assert (one.persistent, one.spill_bytes) == (False, 0)
    (tile,) = one.tiles_for(64, 10_000, True)
    assert (tile.rows, tile.name, tile.shortest, tile.longest) == (64, "", 1, 0)
    assert tile.masks == ["full", "causal"]
    assert ladder.rung("kernel.plain") == one
    with pytest.raises(UserError, match=r"no rung for 'kernel\.plane'; did you mean 'kernel\.plain'\?$"):
        ladder.rung("kernel.plane")


SHORT = TILE | {"name": "short", "longest": 64}
LONG = TILE | {"name": "long", "shortest": 33, "masks": ["causal"]}
WIDE = TILE | {"head_dim": 128, "name": "short"}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ((64, 33, True), ["short", "long"]),
        ((64, 64, False), ["short"]),
        ((64, 65, True), ["long"]),
        ((32, 32, True), []),
    ],
)
def test_tiles_serve_lengths_and_masks_in_the_entrys_order(folder, asked, names):
    ladders.write(folder, rung(SHORT, LONG, WIDE))
    (one,) = ladder.load()
    assert [tile.name for tile in one.tiles_for(*asked)] == names
    assert all(tile.head_dim == 64 for tile in one.tiles_for(*asked))


def test_a_rung_takes_over_how_an_earlier_one_is_launched(folder):
    first = rung(dtypes=["float16"], persistent=True, arguments="tensor maps", parameters="problem")
    second = rung(name="second", launched_like="plain", architectures=["sm_90a"], tiles=..., dtypes=..., arguments=...)
    ladders.write(folder, first, second)
    plain, other = ladder.load()
    assert (other.tiles, other.dtypes, other.arguments) == (plain.tiles, ["float16"], "tensor maps")
    assert (other.persistent, other.parameters, other.architectures) == (True, "problem", ["sm_90a"])


def test_how_tensors_are_passed_is_recorded_and_hashed_in_the_words_of_older_runs(folder):
    for (arguments, parameters), word in ladder.RECORDED.items():
        others = {"merge": "merge" * (parameters in ("packing", "caches")), "deals": "deal" * (parameters == "ragged")}
        ladders.write(folder, rung(arguments=arguments, parameters=parameters, **others))
        (one,) = ladder.load()
        entry = one.model_dump(mode="json")
        assert (entry["arguments"], "parameters" in entry) == (word, False)
        assert ladder.Recorded.model_validate(entry).title == one.title


def test_without_a_ladder_there_is_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_KERNELS", str(tmp_path))
    assert ladder.load() == ()
    assert ladder.hashes() == {}
    assert not [name for name in implementations.known() if name.startswith(ladder.PREFIX)]


# Wrong entries


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (rung(titel="x"), "unknown field 'titel'; fields are name, title, *; did you mean 'title'?"),
        (rung(name="Plain"), "name: string should match pattern*, not 'Plain'"),
        (rung(name="best"), "`kernel.best` is what `make tune` chose: choose another name"),
        (rung(source="plane.cu"), "*/plane.cu is missing: add it, *; did you mean 'plain.cu'?"),
        (rung(source="../plain.cu"), "source: string should match pattern*"),
        (rung(after="plain"), "after: no earlier rung is called 'plain'; earlier are none"),
        (rung(parameters="packing"), "`merge` names the second kernel where `parameters` are a packing*"),
        (rung(parameters="problem"), "with `parameters = 'problem'`, `arguments` have to be tensor maps"),
        (rung(expected_speedup=0.0), "expected_speedup: input should be greater than 0, not 0.0"),
        ((rung(), rung(title="again")), "an earlier rung has this name: choose another"),
        ((rung(), rung(name="second", after="plian")), "after: no earlier rung is called 'plian'; *mean 'plain'?"),
        (rung(launched_like="x"), "launched_like: no earlier rung is called 'x'; earlier are none"),
        (rung(TILE, TILE), "2 tiles for head_dim 64 are called '': give each a `name` of its own"),
        (rung(TILE | {"shortest": 9, "longest": 8}), "the tile *64: `longest`, 8, is less than `shortest`, 9"),
        *(
            (rung(SHORT | tile, arguments="tensor maps"), "the tile 'short' *: a box of a tensor map has 64 columns *")
            for tile in ({"keys": 512}, {"head_dim": 80}, {"box_rows": 257})
        ),
        *(
            (rung(TILE, LONG | tile), said)
            for tile, said in (
                ({"thread": 1}, "unknown field 'tiles.1.thread'; fields are head_dim, rows, *"),
                ({"threads": 100}, "tiles.1.threads: input should be a multiple of 32, not 100"),
                ({"threads": 2048}, "tiles.1.threads: input should be less than or equal to 1024*"),
                ({"shared_bytes": 300_000}, "tiles.1.shared_bytes: input should be less than*"),
            )
        ),
    ],
)
def test_an_entry_that_is_wrong_is_told_in_one_line(folder, entry, said):
    entries = entry if isinstance(entry, tuple) else (entry,)
    ladders.write(folder, *entries)
    message = refused(folder, entries[-1].get("name", 1))
    assert fnmatchcase(message, said.replace("?", "[?]")), message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rungs", "is not valid TOML: "),
        ("rungs = " + 3000 * "[", "is not valid TOML: maximum recursion depth exceeded"),
        ("x = 1", "holds rungs alone: each begins with [[rungs]], in double brackets"),
    ],
)
def test_a_file_that_is_no_ladder_is_told_in_one_line(folder, text, said):
    (folder / "ladder.toml").write_text(text)
    assert refused(folder).startswith(said)


# Hashes


def test_a_kernel_is_its_source_its_headers_and_its_entry(folder):
    before = ladder.hashes()
    assert list(before) == ["kernel.plain"]
    assert ladder.hashes() == before
    seen = {before["kernel.plain"]}
    for name in ("plain.cu", "widen.cuh"):
        (folder / name).write_text((folder / name).read_text() + "struct Another;\n")
        seen.add(ladder.hashes()["kernel.plain"])
    ladders.write(folder, rung(hypothesis="another"))
    seen.add(ladder.hashes()["kernel.plain"])
    assert len(seen) == 4
    ladders.write(folder)
    assert ladder.hashes() == before


def test_a_source_with_the_machine_code_of_another_has_its_hash_until_it_changes(folder):
    own = ladder.own_hash(ladder.load(folder)[0])
    entry = folder / "ladder.toml"
    entry.write_text(entry.read_text().replace("function = ", f'same_code = {{ {own} = "earlier" }}\nfunction = ', 1))
    (rung, *_) = ladder.load(folder)
    assert (ladder.own_hash(rung), ladder.hashes([rung])[rung.implementation]) == (own, "earlier")
    source = folder / rung.source
    source.write_text(source.read_text() + "\nint changed;\n")
    assert ladder.hashes([rung])[rung.implementation] == ladder.own_hash(rung) != own


def test_no_rung_states_the_hash_of_a_source_that_it_no_longer_has():
    for each in ladder.load():
        assert all(ladder.own_hash(each) in known for known in (each.same_code, each.replaces) if known), each.name


def test_comments_make_no_difference_and_what_looks_like_them_does(folder):
    before = ladder.hashes()
    source = folder / "plain.cu"
    source.write_text("/* what it does,\n   and why */\n\n" + source.read_text() + "// another\n")
    assert ladder.hashes() == before
    apart = 'char a[] = "/* \\" // */";  // gone\nint b = 4 / 2;'
    assert ladder.code(apart) == 'char a[] = "/* \\" // */";\nint b = 4 / 2;'
    assert ladder.code("int a;/*\n\n*/ int b; //") == "int a;  int b;"


def test_headers_are_followed_through_headers_and_round_in_circles(folder):
    (folder / "widen.cuh").write_text('#include "inner.cuh"\n')
    (folder / "inner.cuh").write_text('  #  include "widen.cuh"\n#include <cuda_fp16.h>\n#include "not_ours.h"\n')
    names = list(ladder.texts(ladder.load()[0]))
    assert names == ["plain.cu", "widen.cuh", "inner.cuh"]
