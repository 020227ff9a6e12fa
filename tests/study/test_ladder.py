"""The ladder: what an entry means, what is said of one that is wrong, and what makes a kernel another."""

import re

import ladders
import pytest
from ladders import TILE, rung

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.study import implementations, ladder, studies


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A folder of kernels that stands for the project's, with one rung."""
    folder = ladders.write(tmp_path / "kernels")
    monkeypatch.setenv("ATTNLAB_KERNELS", str(folder))
    return folder


def refused(folder) -> str:
    with pytest.raises(UserError) as caught:
        ladder.load()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder}/ladder.toml")
    return message.removeprefix(f"{folder}/ladder.toml").removeprefix(": ")


# The project's own


def test_every_rung_of_the_project_loads():
    rungs = ladder.load(paths.ROOT / "kernels")
    assert rungs[0].after == ""
    assert all(ladder.sources(rung, paths.ROOT / "kernels")[0].name == rung.source for rung in rungs)
    assert len({rung.source for rung in rungs}) == len(rungs)


def test_every_kernel_of_the_project_is_of_a_rung():
    named = {rung.source for rung in ladder.load(paths.ROOT / "kernels")}
    assert {path.name for path in (paths.ROOT / "kernels").glob("*.cu")} == named


def test_template_arguments_are_named_as_the_kernel_names_them():
    for one in ladder.load(paths.ROOT / "kernels"):
        source = (paths.ROOT / "kernels" / one.source).read_text()
        declared = re.search(
            rf"template <typename T, int D, bool CAUSAL([^>]*)>\s__global__[^;{{]*\b{one.function}\(", source
        )
        assert declared, one.name
        names = [name.lower() for name in re.findall(r"int (\w+)", declared[1])]
        assert all(list(tile.template) == names for tile in one.tiles)


# An entry


def test_a_rung_as_it_was_stated(kernels):
    (one,) = ladder.load()
    assert one.implementation == "kernel.plain"
    assert (one.persistent, one.spill_bytes) == (False, 0)
    (tile,) = one.tiles_for(64, 10_000, True, "NVIDIA H200")
    assert (tile.rows, tile.name, tile.shortest, tile.longest) == (64, "", 1, 0)
    assert (tile.masks, tile.devices) == (["full", "causal"], [])
    assert one.tiles_for(128, 10_000, True, "NVIDIA H200") == []
    assert ladder.rung("kernel.plain") == one
    with pytest.raises(UserError, match=r"no rung for 'kernel\.plane'; did you mean 'kernel\.plain'\?$"):
        ladder.rung("kernel.plane")


SHORT = TILE | {"name": "short", "longest": 64}
LONG = TILE | {"name": "long", "shortest": 33, "masks": ["causal"], "devices": ["NVIDIA H200", "NVIDIA L4"]}
WIDE = TILE | {"head_dim": 128, "name": "short"}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ((64, 32, True, "NVIDIA H200"), ["short"]),
        ((64, 33, True, "NVIDIA H200"), ["short", "long"]),
        ((64, 64, True, "NVIDIA L4"), ["short", "long"]),
        ((64, 64, False, "NVIDIA H200"), ["short"]),
        ((64, 65, True, "NVIDIA H200"), ["long"]),
        ((64, 65, True, "NVIDIA H100"), []),
        ((64, 65, False, "NVIDIA H200"), []),
        ((32, 32, True, "NVIDIA H200"), []),
    ],
)
def test_tiles_serve_lengths_masks_and_devices_in_the_entrys_order(kernels, asked, names):
    ladders.write(kernels, rung(SHORT, LONG, WIDE))
    (one,) = ladder.load()
    assert [tile.name for tile in one.tiles_for(*asked)] == names
    assert all(tile.head_dim == 64 for tile in one.tiles_for(*asked))


def test_a_tile_is_called_by_its_name_and_head_dim(kernels):
    ladders.write(kernels, rung(SHORT, TILE | {"head_dim": 32}))
    assert [tile.title for tile in ladder.load()[0].tiles] == [
        "the tile 'short' for head_dim 64",
        "the tile for head_dim 32",
    ]


def test_sizes_follow_from_the_head_dim_and_the_template_arguments(kernels):
    sizes = {"rows": "16 * warps", "threads": "32 * warps", "shared_bytes": "(2 * head_dim + 7) // 8 * (warps - 1)"}
    stated = {"head_dim": 64, "keys": 1, "template": {"warps": 4}}
    ladders.write(kernels, rung(stated, stated | {"head_dim": 32, "threads": 64}, sizes=sizes))
    (one,) = ladder.load()
    assert [(tile.rows, tile.threads, tile.shared_bytes) for tile in one.tiles] == [(64, 128, 48), (64, 64, 24)]
    # As if they had been stated.
    before = ladder.hashes()
    tiles = [tile.model_dump(exclude_unset=True) | {"template": stated["template"]} for tile in one.tiles]
    ladders.write(kernels, rung(*tiles))
    assert ladder.hashes() == before


def test_a_rung_takes_over_how_an_earlier_one_is_launched(kernels):
    tile = {name: value for name, value in TILE.items() if name != "threads"}
    first = rung(tile, sizes={"threads": 96}, dtypes=["float16"], persistent=True)
    second = rung(name="second", launched_like="plain", architectures=["sm_90a"], tiles=..., dtypes=..., arguments=...)
    ladders.write(kernels, first, second)
    plain, other = ladder.load()
    assert (other.tiles, other.dtypes, other.arguments) == (plain.tiles, ["float16"], "pointers")
    assert (other.persistent, other.architectures) == (True, ["sm_90a"])


def test_instances_are_named_as_the_compiler_takes_them(kernels):
    ladders.write(kernels, rung(TILE | {"template": {"n": 4, "m": -1}}))
    (one,) = ladder.load()
    assert one.expression("float16", one.tiles[0], True) == "plain<__half, 64, true, 4, -1>"
    assert one.expression("bfloat16", one.tiles[0], False) == "plain<__nv_bfloat16, 64, false, 4, -1>"


@pytest.mark.parametrize(
    ("listed", "capability", "chosen"),
    [
        (["sm_80", "sm_89", "sm_90a"], (9, 0), "sm_90a"),
        (["sm_80", "sm_89", "sm_90a"], (8, 9), "sm_89"),
        (["sm_80"], (8, 6), "sm_86"),
        (["sm_80"], (9, 0), "sm_90"),
        (["sm_80"], (12, 0), "sm_120"),
        (["sm_90a"], (8, 0), None),
        (["sm_90a"], (10, 0), None),
        (["sm_89"], (8, 0), None),
        (["sm_100f", "sm_90"], (10, 0), "sm_100f"),
    ],
)
def test_a_device_is_compiled_for_by_its_own_architecture(kernels, listed, capability, chosen):
    ladders.write(kernels, rung(architectures=listed))
    assert ladder.load()[0].architecture(capability) == chosen


def test_a_rung_is_an_implementation(kernels):
    assert implementations.known()[-2:] == ("kernel.plain", "kernel.best")
    assert implementations.require("kernel.plain") == "kernel.plain"
    with pytest.raises(UserError, match=r"unknown implementation 'kernel\.plane'.*did you mean 'kernel\.plain'\?$"):
        implementations.require("kernel.plane")


def test_without_a_ladder_there_is_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_KERNELS", str(tmp_path))
    assert ladder.load() == ()
    assert ladder.hashes() == {}
    assert not [name for name in implementations.known() if name.startswith(ladder.PREFIX)]


def test_a_recorded_study_may_name_a_kernel_that_is_gone(kernels):
    from conftest import TINY

    stated = TINY | {"implementations": ["sdpa.auto", "kernel.gone"]}
    assert studies.recorded({"name": "run", "study": stated}).implementations[1] == "kernel.gone"
    with pytest.raises(UserError, match=r"^here: unknown implementation 'kernel\.gone'"):
        studies.parse(stated, "here")


# An entry that is wrong


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (rung(titel="x"), "rung 'plain': unknown field 'titel'; fields are name, title, *; did you mean 'title'?"),
        (rung(title=...), "rung 'plain': the field 'title' is missing"),
        (rung(name=...), "rung 1: the field 'name' is missing"),
        (rung(name="Plain"), "rung 'Plain': name: string should match pattern*, not 'Plain'"),
        (rung(source="plane.cu"), "rung 'plain': */plane.cu is missing: add it, *; did you mean 'plain.cu'?"),
        (rung(source="../plain.cu"), "rung 'plain': source: string should match pattern*"),
        (rung(after="plain"), "rung 'plain': after: no earlier rung is called 'plain'; earlier are none"),
        (rung(dtypes=["float32"]), "rung 'plain': dtypes.0: input should be 'float16' or 'bfloat16', not 'float32'"),
        (rung(dtypes=[]), "rung 'plain': dtypes: list should have at least 1 item*"),
        (rung(dtypes=["float16", "float16"]), "rung 'plain': float16 is listed twice"),
        (rung(architectures=["90a"]), "rung 'plain': architectures.0: string should match pattern*, not '90a'"),
        (rung(architectures=["sm_80", "sm_80"]), "rung 'plain': sm_80 is listed twice"),
        (rung(arguments="pointer"), "rung 'plain': arguments: input should be 'pointers', 'tensor maps' or 'views'*"),
        (rung(expected_speedup=0.0), "rung 'plain': expected_speedup: input should be greater than 0, not 0.0"),
        (rung(expected_speedup="fast"), "rung 'plain': expected_speedup: input should be a valid number, not 'fast'"),
        (rung(persistent=1), "rung 'plain': persistent: input should be a valid boolean, not 1"),
        (rung(tiles=...), "rung 'plain': the field 'tiles' is missing"),
        (rung(TILE, TILE), "rung 'plain': 2 tiles serve head_dim 64: give each a `name`, or leave one"),
        (rung(SHORT, WIDE, TILE), "rung 'plain': 2 tiles serve head_dim 64: give each a `name`, or leave one"),
        (rung(SHORT, LONG, SHORT), "rung 'plain': two tiles for head_dim 64 are called 'short': rename one"),
        (rung(TILE | {"name": "Short"}), "rung 'plain', tile 1: name: string should match pattern*, not 'Short'"),
        (rung(TILE | {"shortest": 0}), "rung 'plain', tile 1: shortest: input should be greater than or equal to 1*"),
        (rung(TILE | {"longest": -1}), "rung 'plain', tile 1: longest: input should be greater than or equal to 0*"),
        (
            rung(TILE | {"shortest": 9, "longest": 8}),
            "rung 'plain', tile 1: longest: 8 is less than `shortest`, 9: no length is served",
        ),
        (rung(TILE | {"masks": []}), "rung 'plain', tile 1: masks: list should have at least 1 item*"),
        (rung(TILE | {"masks": ["ful"]}), "rung 'plain', tile 1: masks.0: input should be 'full' or 'causal', not *"),
        (rung(TILE | {"masks": ["full", "full"]}), "rung 'plain', tile 1: full is listed twice"),
        (rung(TILE | {"devices": ["X", "X"]}), "rung 'plain', tile 1: X is listed twice"),
        (rung(longest=100), "rung 'plain': unknown field 'longest'; fields are name, *"),
        (rung(name="best"), "rung 'best': `kernel.best` is what `make tune` chose: choose another name"),
        (
            rung(TILE | {"template": {"n": 1, "m": "x"}}),
            "rung 'plain', tile 1: template.m: input should be a valid integer*'x'",
        ),
        (rung(TILE | {"template": {"n": True}}), "rung 'plain', tile 1: template.n: input should be a valid integer*"),
        (rung(launched_like="x"), "rung 'plain': launched_like: no earlier rung is called 'x'; earlier are none"),
        (rung(sizes={"depth": 1}), "rung 'plain', tile 1: unknown field 'depth'; fields are head_dim, *"),
        (rung(sizes={"box_rows": "2 *"}), "rung 'plain': sizes: '2 [*]' is no formula of whole numbers and *"),
        (
            rung(TILE | {"template": {"n": 1}}, sizes={"box_rows": "n + m"}),
            "rung 'plain': sizes: 'n + m' is no formula of whole numbers and head_dim, n with +, -, [*] and //",
        ),
        (rung(sizes={"box_rows": "4 // 0"}), "rung 'plain': sizes: '4 // 0' is no formula *"),
        (rung(TILE, TILE | {"thread": 1}), "rung 'plain', tile 2: unknown field 'thread'*; did you mean 'threads'?"),
        (rung(TILE | {"threads": 100}), "rung 'plain', tile 1: threads: input should be a multiple of 32, not 100"),
        (rung(TILE | {"threads": 2048}), "rung 'plain', tile 1: threads: input should be less than or equal to 1024*"),
        (rung(TILE | {"shared_bytes": 300_000}), "rung 'plain', tile 1: shared_bytes: input should be less than*"),
        (rung(TILE | {"rows": 0}), "rung 'plain', tile 1: rows: input should be greater than or equal to 1, not 0"),
        (
            rung(TILE | {"keys": 512}, arguments="tensor maps"),
            "rung 'plain': the tile for head_dim 64: keys: a box of a tensor map has at most 256 rows, not 512",
        ),
        (
            rung(TILE | {"head_dim": 80}, arguments="tensor maps"),
            "rung 'plain': the tile for head_dim 80: a box of a tensor map has 64 columns",
        ),
        (
            rung(SHORT | {"head_dim": 80}, arguments="tensor maps"),
            "rung 'plain': the tile 'short' for head_dim 80: a box of a tensor map has 64 columns",
        ),
    ],
)
def test_an_entry_that_is_wrong_is_told_in_one_line(kernels, entry, said):
    from fnmatch import fnmatchcase

    ladders.write(kernels, entry)
    message = refused(kernels)
    assert fnmatchcase(message, said.replace("?", "[?]")), message


def test_rungs_have_names_of_their_own(kernels):
    ladders.write(kernels, rung(), rung(title="again"))
    assert refused(kernels) == "rung 'plain': an earlier rung has this name: choose another"


def test_a_rung_comes_after_one_that_stands_before_it(kernels):
    ladders.write(kernels, rung(), rung(name="second", after="plian"))
    assert refused(kernels) == (
        "rung 'second': after: no earlier rung is called 'plian'; earlier are plain; did you mean 'plain'?"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rungs", " is not valid TOML: "),
        ("x = 1", "unknown key 'x'; a rung begins with [[rungs]]"),
        ("[rungs]\nname = 'x'", "each rung begins with [[rungs]], in double brackets"),
    ],
)
def test_a_file_that_is_no_ladder_is_told_in_one_line(kernels, text, said):
    (kernels / "ladder.toml").write_text(text)
    assert refused(kernels).startswith(said)


# What makes a kernel another


def test_a_kernel_is_its_source_its_headers_and_its_entry(kernels):
    before = ladder.hashes()
    assert list(before) == ["kernel.plain"]
    assert ladder.hashes() == before
    seen = {before["kernel.plain"]}
    for name in ("plain.cu", "widen.cuh"):
        (kernels / name).write_text((kernels / name).read_text() + "struct Another;\n")
        seen.add(ladder.hashes()["kernel.plain"])
    ladders.write(kernels, rung(hypothesis="another"))
    seen.add(ladder.hashes()["kernel.plain"])
    assert len(seen) == 4
    ladders.write(kernels)
    assert ladder.hashes() == before


def test_comments_make_no_difference_and_what_looks_like_them_does(kernels):
    before = ladder.hashes()
    source = kernels / "plain.cu"
    source.write_text("/* what it does,\n   and why */\n\n" + source.read_text() + "// another\n")
    assert ladder.hashes() == before
    apart = 'char a[] = "/* \\" // */";  // gone\nint b = 4 / 2;'
    assert ladder.code(apart) == 'char a[] = "/* \\" // */";\nint b = 4 / 2;'
    assert ladder.code("int a;/*\n\n*/ int b; //") == "int a;  int b;"


def test_fields_that_are_not_stated_make_no_difference(kernels):
    # Measurements of a kernel outlive the fields that are added to entries later.
    content = ladder.load()[0].model_dump(mode="json", exclude_unset=True)
    assert set(content["tiles"][0]) == set(TILE)
    assert "spill_bytes" not in content


def test_another_rung_or_header_makes_no_difference(kernels):
    before = ladder.hashes()["kernel.plain"]
    ladders.write(kernels, rung(), rung(name="second", after="plain"))
    (kernels / "unused.cuh").write_text("// nothing\n")
    assert ladder.hashes()["kernel.plain"] == before


def test_headers_are_followed_through_headers_and_round_in_circles(kernels):
    (kernels / "widen.cuh").write_text('#include "inner.cuh"\n')
    (kernels / "inner.cuh").write_text('  #  include "widen.cuh"\n#include <cuda_fp16.h>\n#include "not_ours.h"\n')
    names = [path.name for path in ladder.sources(ladder.load()[0])]
    assert names == ["plain.cu", "widen.cuh", "inner.cuh"]
