"""The context of a call of `attend`: requests for SDPA itself, autocast, and the state of tensors."""

from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad
from torch.compiler import assume_constant_result, is_compiling
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

# Each returns whether SDPA may choose a backend. Within `sdpa_kernel`, at least one returns False. The math backend is
# left out: it is the slowest, and a program that turns only this one off doesn't choose among the others.
_flash, _efficient = torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled
_cudnn, _overrideable = torch._C._get_cudnn_sdp_enabled, torch._C._get_overrideable_sdp_enabled
_function_modes = torch._C._len_torch_function_stack
_DENSE = (DispatchKey.CUDA, DispatchKey.AutogradCUDA, DispatchKey.ADInplaceOrView)
AUTOCAST = (DispatchKey.AutocastCUDA, DispatchKey.AutocastCPU)
_PLAIN = reduce(or_, map(DispatchKeySet, (*_DENSE, *AUTOCAST)))


@assume_constant_result  # type: ignore[untyped-decorator]
def asks_for_sdpa() -> bool:
    """Whether SDPA itself has to be called, for any tensors.

    That is so if a user chose among its backends, if a mode replaces functions of torch, and if tensors may carry
    forward-mode gradients. Every call checks this, so the check has to take less than 0.3 µs.
    """
    chooses = _flash() and _efficient() and _cudnn() and _overrideable() and forward_ad._current_level < 0
    if not chooses or not _function_modes():
        return not chooses
    # A default device is a mode too, which doesn't affect attention.
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())


def is_watched() -> bool:
    """Whether torch.compile, or a mode that counts or traces, has to see operators in place of kernels."""
    return is_compiling() or torch._C._len_torch_dispatch_stack() > 0


@assume_constant_result  # type: ignore[untyped-decorator]
def is_transformed() -> bool:
    """Whether functorch transforms calls, as in `torch.func.vmap`."""
    return torch._C._functorch.maybe_current_level() is not None


def in_memory(*tensors: Tensor) -> bool:
    """Whether memory holds the elements of tensors unchanged, unlike those of a negated view or a sparse tensor."""
    keys = reduce(or_, map(torch._C._dispatch_keys, tensors)) - _PLAIN
    return keys.highestPriorityTypeId() == DispatchKey.Undefined


def needs_gradients(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on for this device, a GPU or a CPU."""
    return device.type in ("cuda", "cpu") and torch.is_autocast_enabled(device.type)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast Q, K and V as SDPA does under autocast; float64 is not cast."""
    if not is_autocast(q.device):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    q, k, v = (t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in (q, k, v))
    return q, k, v
