"""Which parameters share a learning rate and a weight decay."""

from dataclasses import dataclass

from megalith.config.schema import OptimizerConfig
from megalith.nn.shard import ShardSpec


@dataclass(frozen=True)
class ParameterGroup:
    """Whether the group is decayed, and whether it follows `--decoupled-lr`."""

    decayed: bool
    decoupled: bool


def group_of(spec: ShardSpec, config: OptimizerConfig) -> ParameterGroup:
    """The group of a parameter: gains and biases are not decayed.

    Embedding and output layer have their own learning rate when `--decoupled-lr` is given.
    """
    decayed = len(spec.global_shape) > 1
    if spec.role == "qk_norm" and config.apply_wd_to_qk_layernorm:
        decayed = True
    return ParameterGroup(decayed, config.decoupled_lr is not None and spec.role == "vocabulary")
