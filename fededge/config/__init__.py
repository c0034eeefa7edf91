"""The TOML configuration of coordinator and agent: keys, help, loading, template."""

from fededge.config.hardware_sections import EvaluationHardwareConfig, HardwareConfig
from fededge.config.loading import check_run, load, load_either
from fededge.config.run_sections import (
    ModelConfig,
    RobustConfig,
    RolloutConfig,
    RoundsConfig,
    TrainingConfig,
    TransferConfig,
)
from fededge.config.sections import (
    AgentConfig,
    BrokerConfig,
    CoordinatorConfig,
    DataConfig,
    ExportConfig,
    LogConfig,
    Side,
)
from fededge.config.template import template

__all__ = [
    "AgentConfig",
    "BrokerConfig",
    "CoordinatorConfig",
    "DataConfig",
    "EvaluationHardwareConfig",
    "ExportConfig",
    "HardwareConfig",
    "LogConfig",
    "ModelConfig",
    "RobustConfig",
    "RolloutConfig",
    "RoundsConfig",
    "Side",
    "TrainingConfig",
    "TransferConfig",
    "check_run",
    "load",
    "load_either",
    "template",
]
