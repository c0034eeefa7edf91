"""The two configuration files, and the sections for broker, data and export."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from fededge.config.base import Section, described
from fededge.config.hardware_sections import EvaluationHardwareConfig, HardwareConfig
from fededge.config.run_sections import (
    ModelConfig,
    RobustConfig,
    RolloutConfig,
    RoundsConfig,
    TrainingConfig,
    TransferConfig,
)

__all__ = [
    "PASSWORD_VARIABLE",
    "AgentConfig",
    "BrokerConfig",
    "CoordinatorConfig",
    "DataConfig",
    "ExportConfig",
    "LogConfig",
    "Side",
]

PASSWORD_VARIABLE = "FEDEDGE_PASSWORD"


class BrokerConfig(Section, frozen=True):
    """The MQTT broker that connects the coordinator and the agents."""

    host: Annotated[str, described("name or address of the broker", min_length=1)] = "localhost"
    port: Annotated[int, described("1883, or 8883 with TLS", ge=1, le=65535)] = 1883
    tls: Annotated[
        bool, described("encrypt the connection, and verify the broker's certificate")
    ] = False
    ca: Annotated[
        str, described("with tls: file of the CA that signed the broker's; empty: the system's CAs")
    ] = ""
    certificate: Annotated[
        str, described("with tls: file of the client certificate, if the broker requires one")
    ] = ""
    key: Annotated[str, described("file of the certificate's private key; chmod 600")] = ""
    username: Annotated[str, described("empty: anonymous, or the name in the certificate")] = ""
    password: Annotated[str, described(f"better set {PASSWORD_VARIABLE} or password_file")] = ""
    password_file: Annotated[str, described("file with the password; chmod 600")] = ""
    protocol: Annotated[
        Literal["5", "3.1.1"], described("MQTT version; 3.1.1 for brokers without MQTT 5")
    ] = "5"
    keepalive: Annotated[int, described("MQTT keep-alive in seconds", ge=5, le=3600)] = 30
    wait: Annotated[float, described("seconds to wait for the broker at start", ge=0, le=86400)] = (
        10.0
    )

    @property
    def passwords(self) -> tuple[str, ...]:
        """The password, and during a rotation the one before it, in the order to try them."""
        return tuple(self.password.split("\n"))

    def __repr__(self) -> str:
        """Leaves the password out, because a repr may end up in a log."""
        return f"BrokerConfig({self.username}@{self.host}:{self.port}, tls={self.tls})"


class ExportConfig(Section, frozen=True):
    """The personal model as files for apps: variants, and promotion of a new one."""

    variants: Annotated[
        tuple[Literal["fp16", "int8"], ...], described("made in addition to fp32: fp16, int8")
    ] = ("int8",)
    prefer: Annotated[
        Literal["fp32", "fp16", "int8"],
        described("the variant for apps, if it loses no more than max_drop"),
    ] = "fp32"
    max_drop: Annotated[
        float, described("points of accuracy that the preferred variant may lose", ge=0, le=100)
    ] = 0.5
    margin: Annotated[
        float,
        described("points of accuracy that a new model may lose to the current", ge=0, le=100),
    ] = 0.0
    keep: Annotated[int, described("number of last models kept on disk", ge=1, le=1000)] = 3
    interval: Annotated[
        float,
        described("seconds after which a device that is always busy exports", ge=0, le=86400),
    ] = 10.0
    signing_key: Annotated[str, described("file of the key that signs manifests; empty: none")] = ""

    @property
    def made(self) -> tuple[str, ...]:
        """The variants to make: `variants` and the preferred one."""
        wanted = {*self.variants, self.prefer}
        return tuple(name for name in ("fp16", "int8") if name in wanted)


class DataConfig(Section, frozen=True):
    """Labelled examples: a device's own, or the coordinator's for evaluation."""

    source: Annotated[
        Literal[
            "embedded",
            "fashion-mnist",
            "mnist",
            "cifar10",
            "cifar100",
            "tiny-imagenet",
            "agnews",
            "folder",
            "npz",
            "csv",
            "none",
        ],
        described("source of the examples; an agent needs one, a coordinator may have none"),
    ] = "none"
    root: Annotated[str, described("folder or file of the source; relative to this file")] = ""
    aliases: Annotated[
        dict[str, str],
        described("other names of labels in folder and csv, such as { cats = 'cat' }"),
    ] = msgspec.field(default_factory=dict)
    ignore: Annotated[
        tuple[str, ...], described("sub-folders of a folder source that are no label")
    ] = ()
    split: Annotated[
        str, described("for experiments: split one set among devices, as 'dirichlet:0.1'")
    ] = ""
    devices: Annotated[int, described("with split: number of devices", ge=0)] = 0
    index: Annotated[int, described("with split: this device's number, from 0", ge=0)] = 0
    seed: Annotated[int, described("with split: seed of the split", ge=0, le=2**53)] = 0
    test_share: Annotated[
        float, described("share of the examples that is held out", ge=0, lt=1)
    ] = 0.2


class LogConfig(Section, frozen=True):
    """The log of the service, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        described("least level that is logged: debug, info, warning, error"),
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        described("text, json, or auto: json under systemd, else text"),
    ] = "auto"


class Side(Section, frozen=True, kw_only=True):
    """Keys that both sides have: coordinator and agent."""

    federation: Annotated[str, described("name of the federation, the same on all sides")]
    state: Annotated[str, described("folder for models and all state; relative to this file")]
    broker: BrokerConfig = BrokerConfig()
    data: DataConfig = DataConfig()
    log: LogConfig = LogConfig()


class CoordinatorConfig(Side, frozen=True, kw_only=True):
    """The coordinator of a federation."""

    method: Annotated[
        str,
        described("federated method: 'fedavg', 'fedprox(mu=0.1)+mixup', 'your/file.py:Name', …"),
    ] = "fedavg"
    seed: Annotated[
        int, described("seed of the first model, the selection and the batches", ge=0, le=2**53)
    ] = 0
    signing_key: Annotated[
        str, described("file of the key that signs messages; empty: unsigned")
    ] = ""
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    rounds: RoundsConfig = RoundsConfig()
    robust: RobustConfig = RobustConfig()
    keep_versions: Annotated[
        int, described("number of last versions whose model files are kept; 0: all", ge=0)
    ] = 10
    transfer: TransferConfig = TransferConfig()
    hardware: EvaluationHardwareConfig = EvaluationHardwareConfig()
    rollout: Annotated[
        RolloutConfig | None, described("staged rollout of new personal models; left out: at once")
    ] = None


class AgentConfig(Side, frozen=True, kw_only=True):
    """An agent: one per device."""

    device: Annotated[str, described("this device's id, unique in the federation")]
    methods: Annotated[
        tuple[str, ...], described("plugin methods that it may run, each as 'path/to/file.py:Name'")
    ] = ()
    networks: Annotated[
        tuple[str, ...],
        described("networks in files that it may train, each as 'path/to/net.py:make'"),
    ] = ()
    trusted_key: Annotated[
        str, described("file of the key that must have signed the models; empty: no check")
    ] = ""
    model: Annotated[
        ModelConfig | None, described("accept only this network; left out: any of the federation's")
    ] = None
    max_model_bytes: Annotated[
        int, described("refuse a larger network, whatever the federation says", ge=1)
    ] = 2 * 2**30
    max_memory_bytes: Annotated[
        int, described("refuse a training that takes more memory; 0: half of the machine's", ge=0)
    ] = 0
    hardware: HardwareConfig = HardwareConfig()
    export: ExportConfig = ExportConfig()
