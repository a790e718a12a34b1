"""What kind of work an operation of our step is, by its name and by the functions around it."""

from collections.abc import Iterable, Mapping

OUR_FUNCTIONS: Mapping[str, Mapping[str, str]] = {
    "_BlockedAttention": {
        "bmm": "attention: products",
        "scaled_dot_product": "attention: products",
        "": "attention: softmax and the rest",
    },
    "_LinearCrossEntropy": {"mm": "output layer: products", "": "cross-entropy"},
    "_Linear": {
        "mm": "linear layers: products",
        "copy_": "copies and casts",
        "": "linear layers: sums of gradients",
    },
    "_Lookup": {"": "embedding"},
}
"""Our autograd functions: kinds of the operations in them, by a part of the operation's name."""

OTHERS: Mapping[str, str] = {
    "_fused_adamw_": "optimizer",
    "vector_norm": "optimizer",
    "scaled_dot_product": "attention: products",
    "layer_norm": "norms",
    "rms_norm": "norms",
    "gelu": "activation",
    "silu": "activation",
    "copy_": "copies and casts",
    "cat": "copies and casts",
    "zero_": "zero-fill",
    "fill_": "zero-fill",
    "add": "other pointwise work",
    "mul": "other pointwise work",
}
"""Kinds of all other operations."""


def kind_of(operation: str, around: Iterable[str]) -> str:
    """The kind of an operation such as "aten::mm"; `around` names what called it, nearest first."""
    for name in around:
        function = OUR_FUNCTIONS.get(name.removesuffix("Backward"))
        if function is not None:
            # "linear" is F.linear when it computes by itself, without calling mm.
            name = operation.replace("linear", "mm")
            return next(kind for part, kind in function.items() if part in name)
    return next((kind for part, kind in OTHERS.items() if part in operation), "all else")
