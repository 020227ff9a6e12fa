"""Launches of the kernel of sequences of unequal lengths, with the arguments that kernels/15_ragged.cu declares.

The lengths stay on the device: a first kernel reads them and lists the work for the second. So a graph may be replayed
with other lengths.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnlab.measuring.kernels import maps
from attnlab.measuring.kernels.launch import Launch, Maps, Pointers, early
from attnlab.measuring.kernels.problem import Divisor
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Unsupported

BLOCK = 64
"""Queries of a job."""
DEALERS = 1024
"""Threads of the CTA that lists passes."""
PASS_WORDS = 12
"""The words of 4 bytes of a pass, and of the header before all passes."""


class Lengths(ctypes.Structure):
    """The lengths of sequences, or the boundaries of packed ones; `rows` of the tensor, or of each padded sequence."""

    _fields_ = (("at", ctypes.c_void_p), *((name, ctypes.c_int) for name in ("packed", "rows", "step")))


class Dealing(ctypes.Structure):
    """Arguments of the kernel that lists passes: `pass_blocks` jobs each, for `ctas` CTAs, at most `room` of a head."""

    _COUNTS = ("value_step", "out_step", "sequences", "kv_heads", "sharing", "pass_blocks", "tile_keys", "room", "ctas")
    _fields_ = (("queries", Lengths), ("keys", Lengths), *((name, ctypes.c_int) for name in _COUNTS))


class RaggedProblem(ctypes.Structure):
    """The problem of all sequences, whose passes are listed in `schedule`."""

    _fields_: ClassVar[Any] = (
        ("schedule", ctypes.c_void_p),
        ("kv_heads", Divisor),
        ("sharing", ctypes.c_int),
        ("scale", ctypes.c_float),
    )


class PagedProblem(RaggedProblem):
    """The same with K and V in pages of `page` keys, `key_step` and `value_step` rows apart, and a table of these."""

    _fields_ = (("table", ctypes.c_void_p), ("page", Divisor), ("key_step", ctypes.c_int), ("value_step", ctypes.c_int))


@dataclass(eq=False)
class RaggedLaunch(Launch):
    """A kernel of sequences of unlike lengths, and the one that lists its work, for tensors of these strides.

    Attributes:
        deal: the driver's handle of the first kernel.
        pass_blocks: jobs of a pass.
        pages: of each sequence in a block table; 0 without one.
    """

    deal: int
    pass_blocks: int
    pages: int = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.of_lengths(q, k, v, None)

    def of_lengths(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_lens: Tensor | None,
        q_lens: Tensor | None = None,
        block_table: Tensor | None = None,
    ) -> Tensor:
        """Launch it where each sequence has its own number of keys and of queries, int32 tensors ``(batch,)``.

        Lengths are cut to the tensor's, and to 0; None stands for all. Under the mask the last query sees all keys of
        its sequence. A query that sees no key gives 0. Rows behind a length are neither read nor written.

        Args:
            block_table: the pages of each sequence, an int32 tensor ``(batch, pages)``, if the launch has pages.
        """
        self._require((q.shape[0],), kv_lens=kv_lens, q_lens=q_lens)
        self._require((q.shape[0], self.pages), block_table=block_table)
        return self._launch_both(q, k, v, q_lens, kv_lens, None, block_table)

    def packed(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> Tensor:
        """Launch it on sequences that follow each other in tensors ``(1, heads, tokens, head_dim)``.

        Sequence i has the rows from `cu_seqlens[i]` on, before `cu_seqlens[i + 1]`: int32 tensors ``(sequences + 1,)``.
        A boundary outside of a tensor counts as its end. Rows of no sequence are neither read nor written.
        """
        self._require((cu_seqlens_q.numel(),), cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        return self._launch_both(q, k, v, cu_seqlens_q, cu_seqlens_k, cu_seqlens_q.numel() - 1)

    def _launch_both(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_lengths: Tensor | None,
        k_lengths: Tensor | None,
        sequences: int | None,
        block_table: Tensor | None = None,
    ) -> Tensor:
        """Launch both kernels; with a number of sequences they are packed, else there is one for each of the batch."""
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (at_q | at_k | at_v) % maps.ALIGNMENT:
            raise Unsupported(maps.MISALIGNED)
        if torch._C._cuda_getDevice() != self.device:
            with torch.cuda.device(self.device):
                return self._launch_both(q, k, v, q_lengths, k_lengths, sequences, block_table)
        output = outputs.like(q)
        try:
            parameters, problem, dealt, dealing, config = self._own.parameters
        except AttributeError:
            parameters, problem, dealt, dealing, config = self._of_this_thread()
        batch, _, rows, _ = q.shape
        items, sharing = self.pass_blocks * BLOCK, dealing.sharing
        room = batch * -(-rows // items) if sequences is None else rows // items + min(sequences, rows)
        if not room:  # no queries
            return output
        dealing.room = room * sharing
        dealing.sequences = batch if sequences is None else sequences
        dealing.queries.packed = dealing.keys.packed = sequences is not None
        dealing.queries.rows, dealing.keys.rows = rows, k.shape[2] * (self.pages or 1)
        dealing.queries.at = 0 if q_lengths is None else q_lengths.data_ptr()
        dealing.keys.at = 0 if k_lengths is None else k_lengths.data_ptr()
        # Held until both are launched: nobody else on this stream gets its memory before.
        schedule = torch.empty((1 + dealing.room) * PASS_WORDS, dtype=torch.int32, device=q.device)
        problem.schedule = schedule.data_ptr()
        if block_table is not None:
            problem.table = block_table.data_ptr()
        dealt.point((problem.schedule,))
        parameters.point((at_q, at_k, at_v, output.data_ptr()))
        config.hStream = stream = torch._C._cuda_getCurrentRawStream(self.device)
        (error,) = self._launch(self._deal, 1, 1, 1, DEALERS, 1, 1, 0, stream, dealt.address, 0)
        if error == self._success:
            (error,) = self._launch_early(config, self._fixed[0], parameters.address, 0)
        if error != self._success:
            raise self.failed(error.name)
        return output

    def __post_init__(self) -> None:
        super().__post_init__()
        driver = maps.driver()
        self._launch_early, self._deal = driver.cuLaunchKernelEx, driver.CUfunction(self.deal)

    def _of_this_thread(self) -> Any:
        torch.cuda.set_device(self.device)
        encoded, problem, dealing = self.parameters()
        config = early(self.ctas, self.threads, self.shared_bytes)
        parameters, dealt = Maps(encoded, [problem]), Pointers([dealing], 1)
        self._own.parameters = parameters, problem, dealt, dealing, config
        return self._own.parameters


def dealing_of(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, pass_blocks: int, tile_keys: int, ctas: int, pages: int = 0
) -> Dealing:
    """How passes of such tensors are listed, but for their lengths; raises Unsupported as `maps.step` does.

    Args:
        pages: of each sequence in a block table, in which its row then begins; 0 without one.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    queries, keys = Lengths(step=maps.step(q)), Lengths(step=pages or maps.step(k))
    steps = maps.step(v), maps.step(output)
    return Dealing(queries, keys, *steps, 0, kv_heads, heads // kv_heads, pass_blocks, tile_keys, 0, ctas)
