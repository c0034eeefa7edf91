"""The TOML file of each side: its keys, their meaning, and errors that name the key."""

from fededge.config.loading import load, load_either
from fededge.config.sections import (
    AgentConfig,
    BrokerConfig,
    CoordinatorConfig,
    DataConfig,
    ExportConfig,
    ModelConfig,
    RobustConfig,
    RolloutConfig,
    RoundsConfig,
    Side,
    TrainingConfig,
    TransferConfig,
)
from fededge.config.template import template

__all__ = [
    "AgentConfig",
    "BrokerConfig",
    "CoordinatorConfig",
    "DataConfig",
    "ExportConfig",
    "ModelConfig",
    "RobustConfig",
    "RolloutConfig",
    "RoundsConfig",
    "Side",
    "TrainingConfig",
    "TransferConfig",
    "load",
    "load_either",
    "template",
]
