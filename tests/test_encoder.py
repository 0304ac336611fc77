"""The encoder's parts against their definitions, in every precision, with padding of every kind."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from models import GIGAAM, NEMO, backend, checkpoint, model_params
from support import ROOT, read_wav, utterances
from torch import Tensor

from transduce.errors import AudioError, DeviceError
from transduce.nn import encoder as enc
from transduce.nn.backend import TorchBackend
from transduce.types import EncoderSpec

TRAINED = model_params(*(name for name in (*NEMO, *GIGAAM) if name != "nemo-rnnt_char"))
"""All but the one with random weights, whose near ties no half precision keeps."""


def small_spec(**changes: Any) -> EncoderSpec:
    settings: dict[str, Any] = {
        "num_layers": 2,
        "width": 24,
        "num_heads": 3,
        "feed_forward_width": 48,
        "conv_kernel": 5,
        "conv_norm": "layer_norm",
        "subsampling": "striding",
        "subsampling_factor": 4,
        "subsampling_channels": 8,
        "subsampling_kernel": 3,
        "attention": "rel_pos",
        "rotary_base": 5000.0,
        "bias": True,
        "xscaling": False,
    }
    return EncoderSpec(**settings | changes)


def randomized(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return module.eval().requires_grad_(False)


def plain_relative_attention(module: Any, x: Tensor, length: int) -> Tensor:
    """Transformer-XL's formula for one row `[T, D]`, pair by pair, over the valid keys."""
    heads, size = module.num_heads, x.shape[1] // module.num_heads
    q, k, v = (p(x).view(-1, heads, size) for p in (module.linear_q, module.linear_k, module.linear_v))
    out = torch.zeros(len(x), heads, size, dtype=x.dtype)
    for head in range(heads):
        for i in range(len(x)):
            scores = []
            for j in range(length):
                position = sinusoid(i - j, x.shape[1]).to(x.dtype)
                p = module.linear_pos(position).view(heads, size)[head]
                u, w = q[i, head] + module.pos_bias_u[head], q[i, head] + module.pos_bias_v[head]
                scores.append((u @ k[j, head] + w @ p) / math.sqrt(size))
            out[i, head] = torch.softmax(torch.stack(scores), 0) @ v[:length, head]
    return module.linear_out(out.flatten(1))  # type: ignore[no-any-return]


def sinusoid(distance: int, width: int) -> Tensor:
    values = []
    for pair in range(width // 2):
        angle = distance / 10000 ** (2 * pair / width)
        values += [math.sin(angle), math.cos(angle)]
    return torch.tensor(values)


def plain_rotary_attention(module: Any, x: Tensor, length: int, base: float) -> Tensor:
    """GigaAM's formula for one row: the input is turned by its position, then projected to q and k."""
    heads, size = module.num_heads, x.shape[1] // module.num_heads
    turned = torch.empty_like(x)
    for t in range(len(x)):
        for head in range(heads):
            for pair in range(size // 2):
                angle = t / base ** (2 * pair / size)
                a, b = head * size + pair, head * size + pair + size // 2
                turned[t, a] = x[t, a] * math.cos(angle) - x[t, b] * math.sin(angle)
                turned[t, b] = x[t, b] * math.cos(angle) + x[t, a] * math.sin(angle)
    q = module.linear_q(turned).view(-1, heads, size)
    k, v = module.linear_k(turned).view(-1, heads, size), module.linear_v(x).view(-1, heads, size)
    scores = torch.einsum("ihd,jhd->hij", q, k[:length]) / math.sqrt(size)
    mixed = torch.einsum("hij,jhd->ihd", torch.softmax(scores, -1), v[:length])
    return module.linear_out(mixed.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("attention", ["rel_pos", "rotary"])
def test_fused_attention_equals_the_plain_formula(attention: str) -> None:
    """Rows of length 0, 1 and T in one batch; a row that is all padding only has to stay finite."""
    spec, num_frames = small_spec(attention=attention), 7
    module: Any = randomized((enc.RelativeAttention if attention == "rel_pos" else enc.RotaryAttention)(spec))
    x = torch.randn(3, num_frames, spec.width, generator=torch.Generator().manual_seed(1))
    lengths = [0, 1, num_frames]
    inside = torch.arange(num_frames) < torch.tensor(lengths)[:, None]
    mask = torch.where(inside, 0.0, enc.MASKED)[:, None, None, :]
    if attention == "rel_pos":
        positions = enc.relative_positions(num_frames, spec.width, x.device)
    else:
        positions = enc.rotary_angles(num_frames, spec.width // spec.num_heads, spec.rotary_base, x.device)
    found = module(x, mask, positions)
    assert found.isfinite().all()
    for row in (1, 2):
        if attention == "rel_pos":
            plain = plain_relative_attention(module, x[row], lengths[row])
        else:
            plain = plain_rotary_attention(module, x[row], lengths[row], spec.rotary_base)
        torch.testing.assert_close(found[row], plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("subsampling", ["striding", "dw_striding", "conv1d"])
@pytest.mark.parametrize("attention", ["rel_pos", "rotary"])
def test_padded_rows_stay_finite(attention: str, subsampling: str, dtype: torch.dtype) -> None:
    spec = small_spec(attention=attention, subsampling=subsampling)
    if subsampling == "conv1d":
        spec = small_spec(attention=attention, subsampling="conv1d", subsampling_channels=24)
    encoder = randomized(enc.Encoder(spec, num_mels=16)).to(dtype)
    features = torch.randn(4, 40, 16, generator=torch.Generator().manual_seed(2))
    features[0] = 1e4  # what lies in a row that is all padding
    encoded, lengths = encoder(features, torch.tensor([0, 1, 7, 40]))
    assert encoded.dtype == torch.float32
    assert encoded.isfinite().all()
    assert lengths.tolist() == [0, 1, 2, 10] == [spec.num_frames(n) for n in (0, 1, 7, 40)]
    assert not encoded[0].any()


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_changes_few_words(name: str, precision: str) -> None:
    """Only the encoder is in half precision; the trained models keep nearly every label."""
    loaded = checkpoint(name)
    model = TorchBackend(loaded.spec, loaded.weights, device="cpu", precision=precision)
    assert model.describe()["precision"] == precision
    clips = [read_wav(utterance["file"]) for utterance in utterances()[:8]]
    changed = 0
    for half, full in zip(model.recognize(clips), backend(name).recognize(clips), strict=True):
        assert np.isfinite(half.log_probs).all()
        changed += half.ids.tolist() != full.ids.tolist()
    assert changed <= 2


def test_features_are_fp32_in_half_precision() -> None:
    loaded = checkpoint("nemo-hybrid")
    half = TorchBackend(loaded.spec, loaded.weights, device="cpu", precision="bf16")
    assert half.features.filterbank.dtype == half.features.window.dtype == torch.float32


def test_loud_input_stays_finite_in_half_precision() -> None:
    """Samples far outside [-1, 1] must not overflow an fp16 encoder into NaN."""
    loaded = checkpoint("nemo-hybrid")
    model = TorchBackend(loaded.spec, loaded.weights, device="cpu", precision="fp16")
    loud = 1000 * read_wav("u00.wav")
    encoded, _ = model.encode(loud[None], [len(loud)])
    assert encoded.isfinite().all()


def test_positions_have_no_limit() -> None:
    """Upstream's tables end at 5,000 frames; computed ones do not, and agree where both exist."""
    short = enc.relative_positions(50, 32, torch.device("cpu"))
    long = enc.relative_positions(6000, 32, torch.device("cpu"))
    torch.testing.assert_close(long[6000 - 50 : 6000 + 49], short, rtol=0, atol=0)
    torch.testing.assert_close(long[0], sinusoid(5999, 32), rtol=0, atol=2e-3)  # fp32 angles of thousands


@pytest.mark.parametrize(("device", "precision"), [("cuda:99", "fp32"), ("tpu", "fp32"), ("cpu", "int4")])
def test_what_is_not_there_is_a_device_error(device: str, precision: str) -> None:
    loaded = checkpoint("nemo-hybrid")
    with pytest.raises(DeviceError, match=device if device != "cpu" else precision):
        TorchBackend(loaded.spec, loaded.weights, device=device, precision=precision)


OUT_OF_MEMORY = """
import resource, sys
import numpy as np
from models import backend
from transduce.errors import ResourceError

model = backend("nemo-hybrid")
model.recognize([np.zeros(16000, np.float32)])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), used + (600 << 20)))
try:
    model.recognize([np.ones(16000 * 900, np.float32)] * 2)
except ResourceError as error:
    print(error)
print(len(model.recognize([np.zeros(16000, np.float32)])))
"""


@pytest.mark.linux
def test_memory_that_runs_out_on_a_cpu_is_a_resource_error() -> None:
    """torch's CPU allocator raises a plain RuntimeError; the model goes on with smaller work."""
    command = [sys.executable, "-c", OUT_OF_MEMORY]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=False)
    message, count = done.stdout.splitlines()
    assert "ran out of memory on a batch of 2 items" in message
    assert count == "1"


def test_an_encoder_that_overflows_is_an_error_and_no_transcript() -> None:
    """NaN has an argmax too: without the check it is a label with confidence 1, or silence."""
    with pytest.raises(AudioError, match="not finite"):
        backend("nemo-hybrid").recognize([np.full(16000, 1e30, np.float32)])
