"""The Conformer / FastConformer encoder as operators: the ONNX twin of `transduce.nn.encoder`.

In: features `[B, T, M]` and their lengths `[B]`. Out: fp32 frames `[B, T', D]` and lengths. Positions
are computed for any length. A row never depends on its neighbours: padding is zeroed before every
convolution over time and masked in attention, and rows that are all padding stay finite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transduce.onnx.builder import FLOAT, Graph, Value
from transduce.onnx.precision import Precision
from transduce.types import EncoderSpec, FloatArray, Weights

__all__ = ["Net", "encode", "relative", "rotary"]

MASKED = -10000.0
"""Added to the scores of padding: exp() of it is 0 in any precision, and it is finite in fp16."""


def encode(
    graph: Graph, spec: EncoderSpec, weights: Weights, precision: Precision, features: Value, lengths: Value
) -> tuple[Value, Value]:
    """Frames of fp32 features with int64 lengths; the layers run in the given precision."""
    net = Net(graph, weights, precision)
    with graph.scope("encoder"):
        with graph.scope("pre_encode"):
            x, lengths = _subsample(net, spec, precision.enter(graph, features), lengths)
            if spec.xscaling:
                x = graph.op("Mul", x, net.number(math.sqrt(spec.width)))
        inside = graph.inside(lengths, graph.scalar_size(x, 1))
        shared = _Shared(
            inside=graph.unsqueeze(inside, 2),
            scores=graph.unsqueeze(graph.op("Where", inside, net.number(0.0), net.number(MASKED)), 1, 2),
            positions=[relative(net, spec, x)] if spec.attention == "rel_pos" else rotary(net, spec, x),
        )
        for index in range(spec.num_layers):
            with graph.scope(f"layers.{index}"):
                x = _layer(net, spec, f"encoder.layers.{index}", x, shared)
        return precision.leave(graph, x), lengths


@dataclass(frozen=True, slots=True)
class Net:
    """The graph, the weights by name, and the precision of what is built from them."""

    graph: Graph
    weights: Weights
    precision: Precision

    def number(self, value: float) -> Value:
        return self.graph.number(value, self.precision.dtype)

    def tensor(self, name: str, array: FloatArray | None = None) -> Value:
        """The weight of that name, or what was made of it."""
        array = self.weights[name] if array is None else array
        return self.graph.weight(array.astype(self.precision.dtype, copy=False), name)

    def bias(self, name: str) -> list[Value]:
        return [self.tensor(f"{name}.bias")] if f"{name}.bias" in self.weights else []

    def linear(self, x: Value, *names: str) -> Value:
        """`x @ weight.T + bias`; several layers of one input become one product, side by side."""
        weight = _side_by_side([self.weights[f"{name}.weight"] for name in names])
        product = self.precision.matmul(self.graph, x, weight, f"{'+'.join(names)}.weight")
        if f"{names[0]}.bias" not in self.weights:
            return product
        bias = _side_by_side([self.weights[f"{name}.bias"] for name in names])
        return self.graph.op("Add", product, self.tensor(f"{'+'.join(names)}.bias", bias))

    def norm(self, x: Value, name: str) -> Value:
        scale, bias = self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias")
        return self.graph.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def silu(self, x: Value) -> Value:
        return self.graph.op("Mul", x, self.graph.op("Sigmoid", x))

    def masked(self, x: Value, inside: Value) -> Value:
        return self.graph.op("Where", inside, x, self.number(0.0))


def _side_by_side(arrays: Sequence[FloatArray]) -> FloatArray:
    """Joined along the first axis; one alone stays what it is, so that large weights are not copied."""
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all layers use."""

    inside: Value  # [B, T, 1] bool
    scores: Value  # [B, 1, 1, T], added to attention scores
    positions: Sequence[Value]
    """rel_pos: sinusoids [1, 2T - 1, D]; rotary: cosines and sines [T, 1, D / H / 2], fp32."""


# Subsampling


def _subsample(net: Net, spec: EncoderSpec, x: Value, lengths: Value) -> tuple[Value, Value]:
    """`[B, T, M]` to `[B, T', D]`: stride-2 stages, padding zeroed before each."""
    g, is_1d = net.graph, spec.subsampling == "conv1d"
    x = g.op("Transpose", x, perm=[0, 2, 1]) if is_1d else g.unsqueeze(x, 1)  # [B, M, T] or [B, 1, T, M]
    num_stages = spec.subsampling_factor.bit_length() - 1
    index = 0
    for stage in range(num_stages):
        inside = g.inside(lengths, g.scalar_size(x, 2))
        x = net.masked(x, g.unsqueeze(inside, 1) if is_1d else g.unsqueeze(inside, 1, 3))
        lengths = g.op("Div", g.op("Add", lengths, g.integer(1)), g.integer(2))
        separable = stage > 0 and spec.subsampling == "dw_striding"
        x = _conv(net, x, f"encoder.pre_encode.conv.{index}", spec, stride=2, depthwise=separable)
        if separable:
            index += 1
            x = _conv(net, x, f"encoder.pre_encode.conv.{index}", spec, stride=1, depthwise=False)
        x = g.op("Relu", x)
        index += 2
    if is_1d:
        return g.op("Transpose", x, perm=[0, 2, 1]), lengths
    x = g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.ints(0, 0, -1))
    return net.linear(x, "encoder.pre_encode.out"), lengths


def _conv(net: Net, x: Value, name: str, spec: EncoderSpec, stride: int, depthwise: bool) -> Value:
    """A convolution of the kernel that its weight has, padded to keep (or halve, rounding up) the size."""
    kernel = net.weights[f"{name}.weight"].shape[2:]
    return net.graph.op(
        "Conv",
        x,
        net.tensor(f"{name}.weight"),
        *net.bias(name),
        group=spec.subsampling_channels if depthwise else 1,
        kernel_shape=list(kernel),
        strides=[stride] * len(kernel),
        pads=[(size - 1) // 2 for size in kernel] * 2,
    )


# Positions


def relative(net: Net, spec: EncoderSpec, x: Value) -> Value:
    """Sinusoids `[1, 2T - 1, D]` for distances T - 1 down to -(T - 1); sine at even indices."""
    g = net.graph
    last = g.op("Sub", g.scalar_size(x, 1), g.integer(1))
    count = g.op("Add", g.op("Mul", last, g.integer(2)), g.integer(1))
    distance = g.cast(g.op("Sub", last, g.arange(count)), FLOAT)
    rate = np.exp(np.arange(0, spec.width, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / spec.width))
    angles = g.op("Mul", g.unsqueeze(distance, 1), g.constant(rate, "rates"))
    pairs = g.concat([g.unsqueeze(g.op(kind, angles), 2) for kind in ("Sin", "Cos")], 2)
    return net.precision.enter(g, g.op("Reshape", pairs, g.ints(1, -1, spec.width)))


def rotary(net: Net, spec: EncoderSpec, x: Value) -> list[Value]:
    """Cosines and sines `[T, 1, D / H / 2]`, fp32."""
    g, head_width = net.graph, spec.width // spec.num_heads
    powers = -np.arange(0, head_width, 2, dtype=np.float32) / head_width
    rate = (np.float32(spec.rotary_base) ** powers).astype(np.float32)
    frames = g.cast(g.arange(g.scalar_size(x, 1)), FLOAT)
    angles = g.op("Mul", g.unsqueeze(frames, 1, 2), g.constant(rate, "rates"))
    return [g.op("Cos", angles), g.op("Sin", angles)]


# Layers


def _layer(net: Net, spec: EncoderSpec, name: str, x: Value, shared: _Shared) -> Value:
    """Half a feed-forward, attention, convolution, half a feed-forward, norm."""
    attend = _relative_attention if spec.attention == "rel_pos" else _rotary_attention
    x = _feed_forward(net, name, 1, x)
    with net.graph.scope("self_attn"):
        normed = net.norm(x, f"{name}.norm_self_att")
        x = net.graph.op("Add", x, attend(net, spec, f"{name}.self_attn", normed, shared))
    with net.graph.scope("conv"):
        normed = net.norm(x, f"{name}.norm_conv")
        x = net.graph.op("Add", x, _convolution(net, spec, f"{name}.conv", normed, shared.inside))
    return net.norm(_feed_forward(net, name, 2, x), f"{name}.norm_out")


def _feed_forward(net: Net, name: str, number: int, x: Value) -> Value:
    """x plus half of what the two linear layers make of it."""
    own = f"feed_forward{number}"
    with net.graph.scope(own):
        hidden = net.silu(net.linear(net.norm(x, f"{name}.norm_{own}"), f"{name}.{own}.linear1"))
        half = net.graph.op("Mul", net.linear(hidden, f"{name}.{own}.linear2"), net.number(0.5))
        return net.graph.op("Add", x, half)


def _convolution(net: Net, spec: EncoderSpec, name: str, x: Value, inside: Value) -> Value:
    """Gated pointwise, depthwise over time, norm, SiLU, pointwise."""
    g = net.graph
    value, gate = g.split(net.linear(x, f"{name}.pointwise_conv1"), [spec.width, spec.width])
    x = net.masked(g.op("Mul", value, g.op("Sigmoid", gate)), inside)
    x = g.op(
        "Conv",
        g.op("Transpose", x, perm=[0, 2, 1]),
        net.tensor(f"{name}.depthwise_conv.weight"),
        *net.bias(f"{name}.depthwise_conv"),
        group=spec.width,
        kernel_shape=[spec.conv_kernel],
        pads=[(spec.conv_kernel - 1) // 2] * 2,
    )
    x = g.op("Transpose", x, perm=[0, 2, 1])
    if spec.conv_norm == "layer_norm":
        x = net.norm(x, f"{name}.layer_norm")
    return net.linear(net.silu(x), f"{name}.pointwise_conv2")


def _relative_attention(net: Net, spec: EncoderSpec, name: str, x: Value, shared: _Shared) -> Value:
    """Transformer-XL attention: content and distance scores, each with a bias per head."""
    g = net.graph
    parts = net.linear(x, *(f"{name}.linear_{part}" for part in "qkv"))
    q, k, v = (_heads(net, spec, part) for part in g.split(parts, [spec.width] * 3))
    (positions,) = shared.positions
    p = _heads(net, spec, net.linear(positions, f"{name}.linear_pos"), perm=(0, 2, 3, 1))
    # The scale goes to the queries and their biases, which are far smaller than the scores.
    scale = 1 / math.sqrt(spec.width // spec.num_heads)
    q = g.op("Mul", q, net.number(scale))
    u, w = (
        net.tensor(f"{name}.{bias}", net.weights[f"{name}.{bias}"][:, None] * np.float32(scale))
        for bias in ("pos_bias_u", "pos_bias_v")
    )  # [H, 1, D / H]
    by_distance = g.op("MatMul", g.op("Add", q, w), p)
    by_content = g.op("MatMul", g.op("Add", q, u), g.op("Transpose", k, perm=[0, 1, 3, 2]))
    return _attend(net, name, g.op("Add", by_content, _shift(g, by_distance)), v, shared)


def _shift(g: Graph, by_distance: Value) -> Value:
    """`[B, H, T, 2T - 1]` scores by distance to `[B, H, T, T]` scores by key."""
    size = g.size(by_distance, 2)
    padded = g.op("Pad", by_distance, g.ints(0, 0, 0, 1, 0, 0, 0, 0))
    columns = g.op("Reshape", padded, g.concat([g.ints(0, 0, -1), size], 0))  # [B, H, 2T, T]
    columns = g.slice(columns, g.ints(1), g.ints(np.iinfo(np.int64).max), 2)
    rows = g.op("Reshape", columns, g.concat([g.ints(0, 0), size, g.ints(-1)], 0))
    return g.slice(rows, g.ints(0), size, 3)


def _rotary_attention(net: Net, spec: EncoderSpec, name: str, x: Value, shared: _Shared) -> Value:
    """GigaAM's: queries and keys are rotated before their projections, values are not."""
    g = net.graph
    rotated = _rotate(net, spec, x, shared.positions)
    parts = net.linear(rotated, f"{name}.linear_q", f"{name}.linear_k")
    q, k = g.split(parts, [spec.width] * 2)
    q = g.op("Mul", q, net.number(1 / math.sqrt(spec.width // spec.num_heads)))
    keys = _heads(net, spec, k, perm=(0, 2, 3, 1))
    v = _heads(net, spec, net.linear(x, f"{name}.linear_v"))
    return _attend(net, name, g.op("MatMul", _heads(net, spec, q), keys), v, shared)


def _rotate(net: Net, spec: EncoderSpec, x: Value, angles: Sequence[Value]) -> Value:
    """Rotate the halves of every head's part of `[B, T, D]` against each other, in fp32."""
    g, half = net.graph, spec.width // spec.num_heads // 2
    cosine, sine = angles
    heads = g.op("Reshape", net.precision.leave(g, x), g.ints(0, 0, spec.num_heads, 2 * half))
    first, second = g.split(heads, [half, half])
    turned = [
        g.op("Sub", g.op("Mul", first, cosine), g.op("Mul", second, sine)),
        g.op("Add", g.op("Mul", second, cosine), g.op("Mul", first, sine)),
    ]
    return net.precision.enter(g, g.op("Reshape", g.concat(turned, 3), g.ints(0, 0, -1)))


def _heads(net: Net, spec: EncoderSpec, x: Value, perm: Sequence[int] = (0, 2, 1, 3)) -> Value:
    """`[B, T, D]` to `[B, H, T, D / H]`."""
    split = net.graph.op("Reshape", x, net.graph.ints(0, 0, spec.num_heads, -1))
    return net.graph.op("Transpose", split, perm=list(perm))


def _attend(net: Net, name: str, scores: Value, v: Value, shared: _Shared) -> Value:
    """Values `[B, H, T, D / H]` weighted by scores `[B, H, T, T]`, through the output projection."""
    g = net.graph
    shares = g.op("Softmax", g.op("Add", scores, shared.scores), axis=-1)
    mixed = g.op("Transpose", g.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    return net.linear(g.op("Reshape", mixed, g.ints(0, 0, -1)), f"{name}.linear_out")
