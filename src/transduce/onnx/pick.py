"""Which precision an encoder runs in, and why: the rule behind `precision="auto"`.

In: the wish, the engine. Out: a Pick. The rule holds what was measured (docs/cpu.md): products of bytes
(VNNI) by ranges seen in speech take 0.4 of fp32's time in OpenVINO, bf16 0.56 of it, and 0.45 where it is
multiplied in tiles (AMX), where int8 was not tried; onnxruntime's int8 by rows takes half of its fp32. On any
other CPU fp32 is the fastest that is as good.
"""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from transduce.onnx.openvino import native_types
from transduce.onnx.precision import int8_saturates

__all__ = ["Engine", "Pick", "pick"]

Engine: TypeAlias = Literal["onnx", "openvino", "staged"]
"""staged: onnxruntime, with front end, encoder and rule one after the other, so that each can be timed."""

CPU_INFO = Path("/proc/cpuinfo")
"""Linux's list of what the CPU has; elsewhere AMX goes unseen."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A precision; the reason is given where the choice was ours."""

    name: str
    reason: str = ""


def pick(wanted: str, engine: Engine, *, can_calibrate: bool = False) -> Pick:
    """The precision to compute fp32 weights in; any wish but auto is left to the engine to grant.

    `can_calibrate`: whether the weights are at hand, so that int8 in OpenVINO is possible.
    """
    if wanted != "auto":
        return Pick(wanted)
    if engine != "openvino":
        return _of_onnxruntime()
    native = native_types()
    if "bf16" in native and _has_amx():
        return Pick("bf16", "this CPU multiplies bf16 in tiles (AMX), in less than half the time of fp32")
    if can_calibrate and "int8" in native and not _why_no_bytes():
        return Pick("int8", "this CPU multiplies bytes (VNNI), in 0.4 of the time of fp32")
    if "bf16" in native:
        return Pick("bf16", "this CPU multiplies bf16, in half the time of fp32")
    return Pick("fp32", "this CPU does not multiply bf16, so that fp32 is the fastest")


def _of_onnxruntime() -> Pick:
    if why := _why_no_bytes():
        return Pick("fp32", why)
    return Pick("int8", "this CPU multiplies bytes (VNNI), in half the time of fp32")


def _why_no_bytes() -> str:
    """Why this CPU should not multiply bytes; empty where it should."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "int8 was not measured on this kind of CPU"
    return "this CPU has no VNNI, so that products of bytes overflow" if int8_saturates() else ""


def _has_amx() -> bool:
    return CPU_INFO.exists() and "amx_bf16" in CPU_INFO.read_text(errors="replace")
