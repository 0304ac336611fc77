"""Which precision an encoder runs in, and why: the rule behind `precision="auto"`.

In: the wish, the engine. Out: a Pick. The rule holds what was measured (docs/cpu.md): on a CPU with bf16
products OpenVINO's bf16 takes half of fp32's time at the same words, with VNNI onnxruntime's int8 does;
on any other CPU fp32 is the fastest that is as good.
"""

import platform
from dataclasses import dataclass
from typing import Literal, TypeAlias

from transduce.onnx.openvino import native_types
from transduce.onnx.precision import int8_saturates

__all__ = ["Engine", "Pick", "pick"]

Engine: TypeAlias = Literal["onnx", "openvino", "staged"]
"""staged: onnxruntime, with front end, encoder and rule one after the other, so that each can be timed."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A precision; the reason is given where the choice was ours."""

    name: str
    reason: str = ""


def pick(wanted: str, engine: Engine) -> Pick:
    """The precision to compute fp32 weights in; any wish but auto is left to the engine to grant."""
    if wanted != "auto":
        return Pick(wanted)
    if engine != "openvino":
        return _of_onnxruntime()
    if "bf16" in native_types():
        return Pick("bf16", "this CPU multiplies bf16, in half the time of fp32")
    return Pick("fp32", "this CPU does not multiply bf16, so that fp32 is the fastest")


def _of_onnxruntime() -> Pick:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return Pick("fp32", "int8 was not measured on this kind of CPU")
    if int8_saturates():
        return Pick("fp32", "this CPU has no VNNI, so that products of bytes overflow")
    return Pick("int8", "this CPU multiplies bytes (VNNI), in half the time of fp32")
