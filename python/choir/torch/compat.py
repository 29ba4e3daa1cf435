"""Queries of PyTorch's state that differ between its releases, from 1.13 (Debian 12) to the newest."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The type of products under autocast on devices of that type; None if autocast is off."""
    if hasattr(torch, "get_autocast_dtype"):
        on = device != "meta" and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if on else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if device == "cuda" and torch.is_autocast_enabled() else None


def without_autocast(device: str):
    return contextlib.nullcontext() if autocast_dtype(device) is None else torch.autocast(device, enabled=False)


def _asked(name: str) -> bool:
    ask = getattr(getattr(torch, "compiler", None), name, None)
    return ask is not None and ask()


def exporting() -> bool:
    """Asks the flag that torch.compiler.is_exporting returns: some releases compile that call to True in any case."""
    return getattr(getattr(torch, "compiler", None), "_is_exporting_flag", False)


def compiling() -> bool:
    return _asked("is_compiling")


def transformed(tensor: Tensor) -> bool:
    """Whether vmap or func.grad is active, in which no module may change its buffers."""
    functorch = getattr(torch._C, "_functorch", None)
    if compiling() or functorch is None:
        return False
    return functorch.is_functorch_wrapped_tensor(tensor)


def has_values(tensor: Tensor) -> bool:
    """Whether values are available on the host: not for fake tensors, and not while a CUDA graph is captured."""
    if compiling() or exporting() or type(tensor) is not Tensor or tensor.is_meta or transformed(tensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def constant(function: Callable) -> Callable:
    """A function that compiled code calls only during compilation, as a constant."""
    mark = getattr(getattr(torch, "compiler", None), "assume_constant_result", None)
    return function if mark is None else mark(function)


def grouped_types() -> frozenset:
    """The types for which grouped products support tensors without values, which compiling and exporting require.
    In PyTorch 2.11 and 2.13, only bf16."""
    known, log = set(), logging.getLogger("torch._subclasses.fake_tensor")  # it would print every failure
    if hasattr(torch.nn.functional, "grouped_mm"):
        before, log.disabled = log.disabled, True
        with torch._subclasses.fake_tensor.FakeTensorMode():
            ends = torch.empty(2, dtype=torch.int32)
            for kind in (torch.bfloat16, torch.float16, torch.float32):
                with contextlib.suppress(Exception):
                    a, w = torch.empty(8, 8, dtype=kind), torch.empty(2, 8, 8, dtype=kind)
                    torch.nn.functional.grouped_mm(a, w, offs=ends)
                    known.add(kind)
        log.disabled = before
    return frozenset(known)


def again() -> bool:
    """Whether activation checkpointing recomputes a forward within a backward pass."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and not compiling() and task() != -1


def count_grouped_flops() -> None:
    """Registers a formula for grouped products in torch.utils.flop_counter, because PyTorch 2.15 has none."""
    with contextlib.suppress(ImportError, AttributeError):
        from torch.utils.flop_counter import flop_registry, register_flop_formula

        product = torch.ops.aten._grouped_mm
        if product not in flop_registry:
            register_flop_formula(product)(_grouped_flops)


def _grouped_flops(a: Sequence[int], b: Sequence[int], *_: Any, out_shape: Any = None, **more: Any) -> int:
    """Number of operations of a grouped product; a multiplication and an addition are two. Groups divide a
    dimension that both matrices have, or the rows or columns of one matrix."""
    groups = a[0] if len(a) == len(b) == 3 else 1
    return 2 * groups * a[-2] * a[-1] * b[-1]
