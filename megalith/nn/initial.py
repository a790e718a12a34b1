"""Which distribution the weights of a layer start from (Radford et al. 2019, section 2.3)."""

import math

from megalith.config.schema import ModelConfig
from megalith.nn.shard import Initial


def hidden_initial(config: ModelConfig, inputs: int, outputs: int) -> Initial:
    """For weights that read the residual stream."""
    if config.init_method_xavier_uniform:
        return Initial("uniform", math.sqrt(6.0 / (inputs + outputs)))
    return Initial("normal", config.init_method_std)


def output_initial(config: ModelConfig, inputs: int, outputs: int) -> Initial:
    """For weights that write to the residual stream: narrower, the more layers write to it."""
    if config.init_method_xavier_uniform or not config.scaled_init_method:
        return hidden_initial(config, inputs, outputs)
    return Initial("normal", config.init_method_std / math.sqrt(2.0 * config.num_layers))


def embedding_initial(config: ModelConfig) -> Initial:
    """For embedding tables and an untied output layer."""
    std = config.embedding_init_method_std
    return Initial("normal", config.init_method_std if std is None else std)
