"""The arguments that a launch passes to the driver, with a mock driver that records them."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from attnlab.measuring.fp8.kernel import AllScales, ScaledLaunch, ScaledMaps
from attnlab.measuring.kernels import launch, maps, rungs
from attnlab.measuring.kernels.launch import Launch, MappedPointers, Maps, Pointers, SplitLaunch, layout
from attnlab.measuring.kernels.problem import Divisor
from attnlab.measuring.kernels.ragged import PASS_WORDS, Dealing, PagedProblem, RaggedLaunch, RaggedProblem, dealing_of
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.study import ladder

SUCCESS, REFUSED = (SimpleNamespace(name=name) for name in ("CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"))
Q = torch.zeros(2, 3, 8, 64, dtype=torch.float16)
VIEWS = {  # with their strides in bytes
    "contiguous": (Q, (128, 8 * 128, 24 * 128)),
    "tokens first": (Q.transpose(1, 2).contiguous().transpose(1, 2), (3 * 128, 128, 24 * 128)),
    "a slice of QKV": (torch.zeros(2, 8, 3, 3, 64).half()[:, :, 1].transpose(1, 2), (9 * 128, 128, 72 * 128)),
    "a slice of a cache": (torch.zeros(2, 3, 20, 64).half()[:, :, :8], (128, 20 * 128, 60 * 128)),
}
# The handle of a kernel that splits keys, which is given six tensors; the one that merges is given three.
SPLITTING = 5


class Driver:
    """A mock of the part of cuda.bindings.driver that a launch uses. A map is an address and its description."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=SUCCESS)

    def __init__(self):
        self.launches, self.early, self.replaced, self.answer = [], [], 0, SUCCESS

    def CUfunction(self, handle):  # noqa: N802
        return handle

    def CUtensorMap(self, _ptr):  # noqa: N802
        return (ctypes.c_uint64 * 16).from_address(_ptr)

    def cuTensorMapReplaceAddress(self, held, address):  # noqa: N802
        held[0] = address
        self.replaced += 1
        return (self.answer,)

    def cuLaunchKernel(self, function, *rest):  # noqa: N802
        *size, stream, parameters, _ = rest
        pointers = (ctypes.c_void_p * 5).from_address(parameters)
        tensors = [ctypes.c_uint64.from_address(pointers[number]).value for number in range(4)]
        scalar = ctypes.c_int.from_address(pointers[4]).value
        self.launches.append((function, tuple(size), stream, tensors, scalar))
        return (self.answer,)

    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="early", CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION="cluster"
    )

    def CUlaunchAttribute(self):  # noqa: N802
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))

    CUlaunchConfig = SimpleNamespace

    def cuLaunchKernelEx(self, config, function, parameters, _):  # noqa: N802
        given = 6 if function == SPLITTING else 3
        pointers = (ctypes.c_void_p * given).from_address(parameters)
        tensors = [ctypes.c_uint64.from_address(pointers[number]).value for number in range(given)]
        alone, together = config.attrs
        assert config.numAttrs == 2
        assert (alone.id, alone.value.programmaticStreamSerializationAllowed, together.id) == ("early", 1, "cluster")
        assert torch.empty(self.workspace_floats or 1).data_ptr() != tensors[-2]  # which nobody else may get yet
        size = (config.gridDimX, config.blockDimX, config.sharedMemBytes, together.value.clusterDim.x)
        self.early.append((function, size, config.hStream, tensors))
        return (self.answer,)


@pytest.fixture
def driver(monkeypatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(maps, "driver", lambda: driver)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return driver


def mapped():
    return partial(Maps, [bytes(maps.BYTES)] * 4, [ctypes.c_int(9)])


def prepared(parameters, device=0) -> Launch:
    return Launch(5, 6, 128, 1024, device, parameters, Broken)


@pytest.mark.parametrize("parameters", [mapped(), partial(Pointers, [ctypes.c_int(9)])], ids=["maps", "pointers"])
def test_the_kernel_is_launched_on_these_tensors_and_on_others_next(driver, parameters):
    made, others = prepared(parameters), [torch.zeros_like(Q) for _ in range(3)]
    for given in ([Q, Q, Q], others, [Q, Q, Q]):
        output = made(*given)
        function, size, stream, tensors, scalar = driver.launches.pop()
        assert (function, size, stream, scalar) == (5, (6, 1, 1, 128, 1, 1, 1024), 70, 9)
        assert tensors == [tensor.data_ptr() for tensor in (*given, output)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_kernel_in_e4m3_is_given_the_scales_of_each_call(driver, monkeypatch, dtype):
    given, seen = [torch.zeros(2, 3, 8, 64).to(torch.float8_e4m3fn) for _ in range(3)], []
    record = driver.cuLaunchKernel

    def launched(function, *rest):
        scales = AllScales.from_address((ctypes.c_void_p * 6).from_address(rest[-2])[5])
        seen.append([one.at for one in (scales.q, scales.k, scales.v)])
        return record(function, *rest)

    monkeypatch.setattr(driver, "cuLaunchKernel", launched)
    made = ScaledLaunch(5, 6, 128, 1024, 0, partial(ScaledMaps, [bytes(maps.BYTES)] * 4, [ctypes.c_int(9)]), Broken)
    for scales in ([torch.ones(size) for _ in given] for size in ((2, 3, 1), (1, 1, 1))):
        output = made.of_scales(*given, scales, dtype)
        assert (output.shape, output.dtype) == (given[0].shape, dtype)
        assert driver.launches.pop()[3] == [tensor.data_ptr() for tensor in (*given, output)]
        assert seen.pop() == [one.data_ptr() for one in scales]
    driver.answer = REFUSED
    with pytest.raises(Broken, match="CUDA_ERROR_INVALID_VALUE"):
        made.of_scales(*given, scales, dtype)


def test_maps_lie_where_the_driver_asks_for_and_keep_their_description(driver):
    descriptions = [bytes(8) + bytes([number]) * (maps.BYTES - 8) for number in range(4)]
    parameters = Maps(descriptions, [])
    for _ in range(2):
        parameters.point((16, 32, 48, 64))
        assert driver.replaced == 4  # none that is there already
    for number, place in enumerate(parameters._places):
        assert place % launch.ALIGNMENT == 0
        held = ctypes.string_at(place, maps.BYTES)
        assert int.from_bytes(held[:8], "little") == 16 * (number + 1)
        assert held[8:] == descriptions[number][8:]


def test_each_thread_has_its_own_parameters(driver):
    places = []
    driver.cuLaunchKernel = lambda *given: (places.append(given[-2]), SUCCESS)[1:]
    made = prepared(mapped())
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: made(Q, Q, Q), range(8)))
    made(Q, Q, Q)
    assert len(set(places)) > 1
    here = places[-1]
    made(Q, Q, Q)
    assert places[-1] == here


def test_an_address_that_tma_can_not_use_is_refused(driver):
    odd = torch.zeros(Q.numel() + 1, dtype=Q.dtype)[1:].view(Q.shape)
    for given in ((odd, Q, Q), (Q, odd, Q), (Q, Q, odd)):
        with pytest.raises(Unsupported, match=r"^tensors have to begin at addresses that are multiples of 16$"):
            prepared(mapped())(*given)
    assert not driver.launches


def test_the_first_tensors_of_a_layout_may_begin_anywhere(monkeypatch):
    """Maps of misaligned tensors are made as for others, and the launch refuses the tensors."""
    addresses = []
    for encode in ("contiguous", "strided", "ragged"):
        monkeypatch.setattr(maps, encode, lambda tensor, address, rows: addresses.append(address) or b"")
    memory = torch.zeros(Q.numel() + 8, dtype=Q.dtype)
    for rung in (rung for rung in ladder.load() if rung.arguments == "tensor maps"):
        for first in range(8):
            odd = memory[first:][: Q.numel()].view(Q.shape)
            rungs._encoded(rung, rung.tiles[0], odd, odd, odd, "float16")
    assert addresses
    assert not any(address % maps.ALIGNMENT for address in addresses)


def test_a_launch_or_an_address_that_the_driver_refuses_is_an_error(driver):
    made = prepared(partial(Pointers, [ctypes.c_int(9)]))
    driver.answer = REFUSED
    with pytest.raises(Broken, match=r"^CUDA_ERROR_INVALID_VALUE$"):
        made(Q, Q, Q)
    with pytest.raises(Broken, match=r"^the driver can't let a tensor map begin at 0x\w+: CUDA_ERROR_INVALID_VALUE$"):
        prepared(mapped())(Q, Q, Q)


def test_it_goes_to_the_device_of_its_tensors_and_comes_back(driver, monkeypatch):
    current = [0]

    @contextmanager
    def device(number):
        before, current[0] = current[0], number
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
    prepared(mapped(), device=1)(Q, Q, Q)
    assert driver.launches[0][2] == 71
    assert current == [0]


def split(driver, workspace_floats):
    """A launch of a kernel that splits keys, in clusters of 2 CTAs."""
    driver.workspace_floats = workspace_floats
    scalars = [ctypes.c_int(9)]
    made = lambda: (Pointers(scalars, 6), Pointers(scalars, 3))  # noqa: E731
    return SplitLaunch(SPLITTING, 6, 128, 1024, 0, made, Broken, 2, 8, 48, workspace_floats, 2)


def test_what_splits_leave_is_merged_by_a_kernel_that_is_launched_early(driver):
    made = split(driver, 100)
    output = made(Q, Q, Q)
    (*few, given), merge = driver.early
    assert few == [SPLITTING, (6, 128, 1024, 2), 70]
    assert given[:4] == [Q.data_ptr()] * 3 + [output.data_ptr()]
    assert given[4]
    assert given[5] == 0
    assert merge == (8, (48, launch.MERGE_THREADS, 0, 1), 70, [output.data_ptr(), given[4], 0])
    made.merge = 0
    made(Q, Q, Q)
    assert [function for function, *_ in driver.early[2:]] == [SPLITTING]


@pytest.mark.parametrize(("head_dim", "warps"), [(64, 1), (128, 1), (256, 2)])
def test_a_warp_merges_128_columns_of_a_row_at_most(driver, head_dim, warps):
    few, entry = ladder.rung("kernel.few"), SimpleNamespace(kernel=SimpleNamespace(ptr=8))
    q, k = (torch.empty(2, heads, length, head_dim, dtype=torch.float16) for heads, length in ((6, 5), (2, 900)))
    (tile,) = few.tiles_for(head_dim, 900, False, 15)
    compiled = rungs._Compiled(tile, "float16", entry, "few", "sm_90a", 2, entry, ((1, 264),))
    made = rungs._split(few, compiled, q, k, k, False, 0.5)
    assert made.merge_ctas == 2 * 2 * -(-15 * warps // launch.MERGE_WARPS)
    assert made.workspace_floats % (2 * 6 * 5 * (head_dim + 4)) == 0 < made.workspace_floats


@pytest.mark.parametrize("queries", [1, 16])
def test_caches_whose_pages_are_not_whole_rows_apart_come_without_tma_or_not_at_all(driver, queries):
    caches, entry = ladder.rung(rungs.CACHES), SimpleNamespace(kernel=SimpleNamespace(ptr=8))
    q, memory = torch.empty(2, 8, queries, 128, dtype=torch.float16), torch.empty(6, 2 * 16 * 128 + 8)
    k = memory.half()[:, :-8].unflatten(1, (2, 16, 128))
    (tile,) = caches.tiles_for(128, 48, True, 4 * queries)
    compiled = rungs._Compiled(tile, "float16", entry, "caches", "sm_90a", 1, None, ((1, 132),))
    if queries == 16:
        with pytest.raises(Unsupported, match=r"aren't whole rows apart$"):
            rungs._split(caches, compiled, q, k, k, True, 0.5, 3)
        return
    made = rungs._split(caches, compiled, q, k, k, True, 0.5, 3)
    assert (made.merge, made.pages) == (0, 3)


def test_maps_of_keys_and_values_follow_what_pointers_are_launched_with(driver):
    scalar, descriptions = ctypes.c_int(9), [bytes([number]) * maps.BYTES for number in (1, 2)]
    parameters = MappedPointers([scalar], 4, descriptions)
    places = (ctypes.c_void_p * 7).from_address(parameters.address)
    for addresses in ((16, 32, 48, 64), (16, 32, 80, 64)):
        parameters.point(addresses)
        assert [ctypes.c_uint64.from_address(place).value for place in places[:4]] == list(addresses)
        assert places[4] == ctypes.addressof(scalar)
        for place, address, description in zip(places[5:], addresses[1:3], descriptions, strict=True):
            assert place % launch.ALIGNMENT == 0
            assert ctypes.string_at(place, maps.BYTES) == address.to_bytes(8, "little") + description[8:]
    assert driver.replaced == 3  # none that is there already


def test_lengths_of_sequences_are_passed_as_they_lie_on_the_device(driver, monkeypatch):
    lengths = torch.tensor([3, 8], dtype=torch.int32)
    made = split(driver, 100)
    monkeypatch.setattr(made, "device", -1)  # what `get_device` says of a tensor of the host
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1)
    made.of_lengths(Q, Q, Q, lengths)
    assert [tensors[-1] for *_, tensors in driver.early] == [lengths.data_ptr()] * 2
    made.pages, table = 3, torch.zeros(2, 3, dtype=torch.int32)
    monkeypatch.setattr(made, "parameters", lambda: (Pointers([ctypes.c_int(9)], 7), Pointers([ctypes.c_int(9)], 3)))
    del made._own.parameters
    made.of_lengths(Q, Q, Q, lengths, table)
    with pytest.raises(Unsupported, match=r"^block_table has to be an int32 tensor \(2, 3\) on the device of Q$"):
        made.of_lengths(Q, Q, Q, lengths, table[:, :2])
    for wrong in (lengths.long(), lengths[:1], torch.zeros(4, dtype=torch.int32)[::2], lengths.view(2, 1)):
        with pytest.raises(Unsupported, match=r"^kv_lens has to be an int32 tensor \(2,\) on the device of Q$"):
            made.of_lengths(Q, Q, Q, wrong)
    with pytest.raises(Unsupported, match=r"^this kernel takes sequences of one length$"):
        prepared(mapped()).of_lengths(Q, Q, Q, lengths)


@pytest.fixture
def ragged(driver, monkeypatch):
    """A launch for tensors in host memory, and the arguments of its 2 kernels, in order."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1)
    seen = []

    def dealt(function, *rest):
        schedule, dealing = (ctypes.c_void_p * 2).from_address(rest[-2])
        at = ctypes.c_uint64.from_address(schedule).value
        seen.append((function, rest[:6], rest[7], at, Dealing.from_buffer_copy(Dealing.from_address(dealing))))
        return (driver.answer,)

    def computed(config, function, parameters, _):
        *tensors, problem = (ctypes.c_void_p * 5).from_address(parameters)
        problem = RaggedProblem.from_buffer_copy(RaggedProblem.from_address(problem))
        addresses = [ctypes.c_uint64.from_address(at).value for at in tensors]
        assert torch.empty(PASS_WORDS * (1 + seen[-1][-1].room), dtype=torch.int32).data_ptr() != problem.schedule
        seen.append((function, config.gridDimX, config.hStream, addresses, problem.schedule, problem.scale))
        return (driver.answer,)

    monkeypatch.setattr(driver, "cuLaunchKernel", dealt)
    monkeypatch.setattr(driver, "cuLaunchKernelEx", computed)

    def made(q, k, v):
        dealing = dealing_of(q, k, v, torch.empty_like(q, device="meta"), 2, 128, 132)
        problem = RaggedProblem(0, Divisor.of(k.shape[1]), 1, 0.5)
        copies = lambda: ([bytes(maps.BYTES)] * 4, problem, Dealing.from_buffer_copy(dealing))  # noqa: E731
        return RaggedLaunch(5, 132, 384, 1024, -1, copies, Broken, 6, 2)

    return made, seen


def test_a_table_of_pages_is_passed_as_it_lies_on_the_device(ragged):
    made, seen = ragged
    q, k = torch.zeros(2, 3, 8, 64).half(), torch.zeros(7, 3, 32, 64).half()
    launch, table = made(q, k, k), torch.zeros(2, 5, dtype=torch.int32)
    launch.pages, dealing = 5, dealing_of(q, k, k, torch.empty_like(q, device="meta"), 2, 128, 132, 5)
    problem = PagedProblem(0, Divisor.of(3), 1, 0.5, 0, Divisor.of(32), maps.step(k), maps.step(k))
    launch.parameters = lambda: ([bytes(maps.BYTES)] * 4, problem, dealing)
    launch.of_lengths(q, k, k, torch.tensor([160, 3], dtype=torch.int32), None, table)
    assert problem.table == table.data_ptr()
    assert (problem.page.by, problem.key_step, problem.value_step) == (32, 96, 96)
    keys = seen[0][-1].keys
    assert (keys.packed, keys.rows, keys.step) == (0, 160, 5)  # a table's row begins at a multiple of its step
    with pytest.raises(Unsupported, match=r"^block_table has to be an int32 tensor \(2, 5\) on the device of Q$"):
        launch.of_lengths(q, k, k, None, None, table[:, 1:])


@pytest.mark.parametrize(
    ("head_dim", "causal", "prompts", "caches"),
    [(64, True, "three", "three"), (128, False, "two", "two"), (128, True, "three", "two")],
)
def test_chunks_of_prompts_over_caches_have_a_tile_of_their_own(monkeypatch, head_dim, causal, prompts, caches):
    kernel, q = rungs.of(ladder.rung(rungs.RAGGED)), torch.zeros(2, 3, 64, head_dim).half()
    monkeypatch.setattr(rungs, "_served", lambda rung, *_: ("float16", rung.tiles_for(head_dim, 64, causal)[0]))
    monkeypatch.setattr(kernel, "_ready", lambda dtype, tile, *_: tile)
    monkeypatch.setattr(kernel, "_keep", lambda key, tile: tile)
    longer = torch.zeros(2, 3, 65, head_dim).half()
    assert {kernel.prepare(q, q, q, causal, None).name, kernel.packed(q, longer, longer, causal, None).name} == {
        prompts
    }
    found = kernel.prepare(q, longer, longer, causal, None), kernel.paged(q, q, q, 5, causal, None)
    assert {tile.name for tile in found} == {caches}


@pytest.mark.parametrize(("q", "strides"), VIEWS.values(), ids=VIEWS)
def test_padded_sequences_are_listed_first_and_then_computed(ragged, q, strides):
    made, seen = ragged
    k = torch.zeros(2, 3, 500, 64).half()
    q_lens, kv_lens = (torch.tensor(lengths, dtype=torch.int32) for lengths in ([3, 8], [500, 70]))
    output = made(q, k, k).of_lengths(q, k, k, kv_lens, q_lens)
    (deal, size, _, at, dealing), (function, ctas, _, addresses, schedule, scale) = seen
    assert (deal, size, function, ctas, scale) == (6, (1, 1, 1, 1024, 1, 1), 5, 132, 0.5)
    assert at == schedule
    assert addresses == [tensor.data_ptr() for tensor in (q, k, k, output)]
    assert (dealing.queries.at, dealing.keys.at) == (q_lens.data_ptr(), kv_lens.data_ptr())
    assert (dealing.queries.packed, dealing.queries.rows, dealing.keys.rows) == (0, 8, 500)
    assert dealing.queries.step * strides[0] == strides[2]
    assert dealing.out_step * output.stride(2) == output.stride(0)
    assert (dealing.keys.step, dealing.value_step, dealing.sequences) == (3 * 500, 3 * 500, 2)
    assert (dealing.room, dealing.pass_blocks, dealing.tile_keys, dealing.ctas) == (2, 2, 128, 132)


def test_packed_sequences_of_any_number_are_launched_by_one_preparation(ragged):
    made, seen = ragged
    launch = None
    for tokens, ends in ((700, [0, 300, 300, 700]), (5, [0, 5])):
        q = torch.zeros(tokens, 3, 64).half().unsqueeze(0).transpose(1, 2)
        ends = torch.tensor(ends, dtype=torch.int32)
        launch = launch or made(q, q, q)
        output = launch.packed(q, q, q, ends, ends)
        assert output.transpose(1, 2).squeeze(0).is_contiguous()
        dealing = seen[-2][-1]
        assert (dealing.queries.packed, dealing.keys.packed) == (1, 1)
        assert (dealing.queries.rows, dealing.sequences) == (tokens, len(ends) - 1)
        assert dealing.room == tokens // 128 + min(len(ends) - 1, tokens)
    with pytest.raises(Unsupported, match=r"^cu_seqlens_k has to be an int32 tensor \(2,\) on the device of Q$"):
        launch.packed(q, q, q, ends, ends.long())
    assert len(seen) == 4
    empty = q[:, :, :0]
    assert launch.packed(empty, q, q, ends, ends).shape == empty.shape
    assert len(seen) == 4


def test_packed_sequences_are_prepared_once_for_any_number_of_tokens(monkeypatch):
    made, kernel = [], rungs.Kernel(ladder.rung("kernel.ragged"))
    monkeypatch.setattr(rungs, "_served", lambda rung, *_: ("float16", rung.tiles[0]))
    monkeypatch.setattr(kernel, "_ready", lambda *given: made.append(given) or len(made))
    for tokens, expected in ((700, 1), (900, 1), (1, 2)):  # the stride of one row says nothing
        q = torch.zeros(tokens, 2, 64).half().unsqueeze(0).transpose(1, 2)
        assert kernel.packed(q, q, q, True, None) == expected
    by_head = torch.zeros(1, 2, 700, 64).half()  # O has other strides at each number of tokens
    assert [kernel.packed(by_head[:, :, :tokens], q, q, True, None) for tokens in (700, 600)] == [3, 4]


@pytest.mark.parametrize("q", [view for view, _ in VIEWS.values()], ids=VIEWS)
def test_the_output_lies_as_the_queries_do_and_densely(driver, q):
    output = prepared(mapped())(q, q, q)
    assert output.stride() == torch.empty_like(q).stride()
    assert output.shape == q.shape
    assert output.untyped_storage().nbytes() == 2 * q.numel()


def test_a_layout_is_all_but_addresses():
    other, view = torch.ones_like(Q), VIEWS["tokens first"][0]
    of = layout(Q, Q, Q, False, None)
    assert layout(other, other, other, False, None) == of
    others = [(Q.bfloat16(), Q, Q, False, None), (Q, view, Q, False, None), (Q, Q, Q[:1], False, None)]
    for changed in (*others, (Q, Q, Q, True, None), (Q, Q, Q, False, 0.125)):
        assert layout(*changed) != of


# Maps


@pytest.fixture
def encoded(monkeypatch):
    """The maps that the driver encodes: for each a rank, an address, sizes, strides in bytes, and a box."""
    asked, memory = [], ctypes.create_string_buffer(maps.BYTES)

    def encode(dtype, rank, address, sizes, strides, box, steps, *rest):
        asked.append((rank, address, tuple(sizes), tuple(strides), tuple(box)))
        return SUCCESS, SimpleNamespace(getPtr=lambda: ctypes.addressof(memory))

    driver = MagicMock(CUresult=Driver.CUresult, cuuint64_t=int, cuuint32_t=int, cuTensorMapEncodeTiled=encode)
    monkeypatch.setattr(maps, "driver", lambda: driver)
    return asked


def test_a_map_of_contiguous_heads_has_three_dimensions(encoded):
    assert len(maps.contiguous(Q, 16, 32)) == maps.BYTES
    assert encoded == [(3, 16, (64, 8, 6), (128, 8 * 128), (64, 32, 1))]


@pytest.mark.parametrize(("view", "strides"), VIEWS.values(), ids=VIEWS)
def test_one_map_leads_to_the_rows_of_each_sequence_and_to_no_others(encoded, view, strides):
    maps.ragged(view, 16, 32)
    ((rank, _, sizes, apart, box),) = encoded
    assert (rank, sizes[0], sizes[2], box) == (5, 64, 3, (64, 32, 1, 1, 1))
    assert all(stride % 16 == 0 and 0 < stride < maps.FARTHEST for stride in apart)
    assert all(size < 2**32 for size in sizes)
    for sequence, length, row, head in ((0, 8, 0, 0), (1, 5, 4, 2), (1, 5, 5, 2), (1, 0, 0, 1), (0, 3, 70, 1)):
        at = (maps.RAGGED_ROWS - length + row, head, sequence * maps.step(view) + length, maps.RAGGED_ROWS)
        assert (at[0] < sizes[1]) == (row < length)  # else it reads as 0
        offset = sum(place * stride for place, stride in zip(at, apart, strict=True)) % 2**64
        expected = sequence * strides[2] + head * strides[1] + row * strides[0]
        assert offset == expected


def test_sequences_that_are_no_whole_rows_apart_are_refused():
    with pytest.raises(Unsupported, match=r" aren.t whole rows apart$"):
        maps.step(torch.empty_strided((2, 1, 8, 64), (8 * 64 + 8, 64, 64, 1), dtype=Q.dtype))
    assert maps.step(torch.empty_strided((2, 1, 1, 64), (8 * 64 + 8, 64, 64, 1), dtype=Q.dtype)) == 1


@pytest.mark.parametrize(("view", "strides"), VIEWS.values(), ids=VIEWS)
def test_a_map_of_a_view_has_its_strides(encoded, view, strides):
    assert maps.refusal(view) == ""
    maps.strided(view, 16, 32)
    assert encoded == [(4, 16, (64, 8, 3, 2), strides, (64, 32, 1, 1))]


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (Q.transpose(2, 3), "has a stride of 64 between the elements of a row"),
        (Q[:, :1].expand(2, 3, 8, 64), "repeats itself in memory (a stride of 0)"),
        (torch.zeros(2, 3, 8, 68, dtype=Q.dtype)[..., :64], "has a stride of 136 bytes, which is no"),
        (torch.empty_strided((1, 2, 1, 1), (0, 2**40, 0, 1), dtype=Q.dtype, device="meta"), "has a stride of 2199"),
    ],
)
def test_why_no_map_describes_a_tensor(tensor, reason):
    assert maps.refusal(tensor).startswith(reason)


@pytest.mark.parametrize(
    ("size", "rows", "packed", "limit"),
    [
        ((2**15 - 1, 3, 8, 64), 64, True, ""),
        ((2**15, 1, 8, 64), 64, True, "at most 32,767 sequences in a batch"),
        ((1, 2**16, 8, 64), 64, True, "at most 65,535 heads"),
        ((2**15, 2**16 - 1, 8, 64), 64, False, ""),
        ((2**15, 2**16, 8, 64), 64, False, "at most 2,147,483,647 work items"),
    ],
)
def test_what_a_kernels_numbers_do_not_hold_is_told_by_its_limit(size, rows, packed, limit):
    assert maps.limit(Q[:1, :1, :1, :1].expand(size), rows, packed) == limit
