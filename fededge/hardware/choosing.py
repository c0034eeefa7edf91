"""The choice of device, threads and precision: wishes of a configuration become `Hardware`."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace

from fededge.errors import ConfigError
from fededge.hardware.gpu import Finding, gpu_finding, missing_gpu
from fededge.hardware.probe import Probe
from fededge.hardware.settings import CPU, Hardware, MemoryFormat, Precision
from fededge.hardware.threads import threads_for

__all__ = ["Chosen", "check_device_name", "choose", "examine"]

log = logging.getLogger("hardware")

PROBE = Probe()


@dataclass(frozen=True)
class Chosen:
    """The hardware that a training uses, and what kept it from better."""

    hardware: Hardware
    findings: tuple[Finding, ...] = ()


def choose(
    device: str = "auto",
    threads: int = 0,
    precision: str = "float32",
    memory_format: str = "auto",
    macs: float = 0.0,
    probe: Probe = PROBE,
) -> Hardware:
    """Choose the hardware of this process; log the choice, and a warning for each finding.

    Args:
        device: "auto", "cpu", or a device of torch, such as "cuda" or "cuda:1".
        threads: CPU threads; 0: what is fastest for the network.
        precision: of convolutions and matrix products.
        memory_format: of image batches; "auto": what is fastest on the device.
        macs: the network's multiply-accumulates for one input; 0: unknown.
        probe: the machine.

    Raises:
        ConfigError: a device or precision that was asked for by name does not work here.
    """
    chosen = examine(device, threads, precision, memory_format, macs, probe)
    for finding in chosen.findings:
        log.warning("%s", finding, extra={"event": "hardware-unused"})
    if device != "cpu":  # the choice that needs no reason
        log.info("%s", chosen.hardware.reason, extra={"event": "hardware-chosen"})
    return chosen.hardware


def examine(
    device: str = "auto",
    threads: int = 0,
    precision: str = "float32",
    memory_format: str = "auto",
    macs: float = 0.0,
    probe: Probe = PROBE,
) -> Chosen:
    """Choose as `choose` does, but log nothing."""
    check_device_name(device)
    chosen = _automatic(probe) if device == "auto" else _named(device, probe)
    chosen = _with_precision(chosen, _precision(precision), device == "auto", probe)
    taken = chosen.hardware
    count = threads or (threads_for(macs, probe.cores) if taken.on_cpu else 1)
    order = _order(taken) if memory_format == "auto" else MemoryFormat(memory_format)
    findings = (*chosen.findings, *_crowded(count, probe.cores))
    return Chosen(replace(taken, threads=count, memory_format=order), findings)


def _crowded(threads: int, cores: int) -> list[Finding]:
    """More threads than cores are allowed, for the bits of another box, but they are slow."""
    if threads <= cores:
        return []
    problem = f"{threads} threads share {cores} {'core' if cores == 1 else 'cores'}: that is slower"
    return [Finding(problem, f"threads = {cores}, or 0")]


def check_device_name(device: str) -> None:
    """Refuse a text that cannot name a device; no torch is needed."""
    kind, colon, _ = device.partition(":")
    wrong = kind == "gpu" or (colon and kind in ("auto", "cpu"))
    if wrong or not re.fullmatch(r"[a-z][a-z0-9_]*(:\d{1,3})?", device):
        raise ConfigError(f"device is '{device}', it must be like 'auto', 'cpu', 'cuda', 'cuda:1'")


def _automatic(probe: Probe) -> Chosen:
    """The first GPU that works, else another accelerator that works, else the CPU."""
    findings: list[Finding] = []
    for index in range(probe.count("cuda")):
        finding = gpu_finding(probe, index)
        if finding is None:
            return Chosen(_cuda(probe, index), tuple(findings))
        findings.append(finding)
    if not findings:
        missing = missing_gpu(probe)
        findings += [missing] if missing else []
    kind = probe.accelerator()
    if kind and kind != "cuda":
        why = _accelerator_failure(f"{kind}:0", probe)
        if not why:
            reason = f"{kind}:0 is used: it is the accelerator that torch sees"
            return Chosen(Hardware(f"{kind}:0", reason=reason), tuple(findings))
        findings.append(Finding(f"{kind}:0 is not used: it {why}", 'device = "cpu"'))
    why = "the GPU cannot be used" if findings else "torch sees no GPU"
    return Chosen(replace(CPU, reason=f"the CPU is used: {why}"), tuple(findings))


def _named(device: str, probe: Probe) -> Chosen:
    """The device that was asked for; it must work."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return Chosen(replace(CPU, reason="the CPU is used: device is 'cpu'"))
    index = int(number or 0)
    _check_present(device, kind, index, probe)
    if kind == "cuda":
        finding = gpu_finding(probe, index)
        if finding is not None:
            raise ConfigError(f"device is '{device}', but {finding}")
        return Chosen(_cuda(probe, index))
    why = _accelerator_failure(f"{kind}:{index}", probe)
    if why:
        raise ConfigError(f"device is '{device}', but it {why}")
    reason = f"{kind}:{index} is used: device is '{device}'"
    return Chosen(Hardware(f"{kind}:{index}", reason=reason))


def _accelerator_failure(device: str, probe: Probe) -> str:
    """The failure of an accelerator that is not CUDA's; empty if training works on it."""
    why = probe.failure(device)
    if why:
        return f"fails a small computation ({why})"
    why = probe.failure(device, "float64")
    return f"does not compute in float64, which sums need ({why})" if why else ""


def _check_present(device: str, kind: str, index: int, probe: Probe) -> None:
    """Refuse a device that torch does not see."""
    count = probe.count(kind)
    if index < count:
        return
    if count:
        there = "there is one" if count == 1 else f"there are {count}"
        last = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise ConfigError(f"device is '{device}', but {there}: use {last}")
    finding = missing_gpu(probe) if kind == "cuda" else None
    if finding is not None:
        raise ConfigError(f"device is '{device}', but {finding}")
    raise ConfigError(
        f"device is '{device}', but torch {probe.torch.__version__} sees no such device here: "
        "use 'auto' or 'cpu'"
    )


def _cuda(probe: Probe, index: int) -> Hardware:
    name = probe.torch.cuda.get_device_name(index)
    free = probe.free_memory(index) / 2**30
    reason = f"cuda:{index} is used: {name} works, {free:.1f} GB of its memory are free"
    return Hardware(f"cuda:{index}", reason=reason)


def _precision(name: str) -> Precision:
    try:
        return Precision(name)
    except ValueError:
        allowed = ", ".join(each.value for each in Precision)
        raise ConfigError(f"precision is '{name}', it must be one of: {allowed}") from None


def _with_precision(chosen: Chosen, precision: Precision, automatic: bool, probe: Probe) -> Chosen:
    """The choice with this precision: a named device must have it, "auto" takes float32 instead."""
    why = _unable(chosen.hardware, precision, probe)
    if not why:
        return replace(chosen, hardware=replace(chosen.hardware, precision=precision))
    if not automatic:
        raise ConfigError(f"precision is '{precision.value}', but {why}")
    finding = Finding(f"float32 is used: {why}", 'precision = "float32"')
    return replace(chosen, findings=(*chosen.findings, finding))


def _unable(hardware: Hardware, precision: Precision, probe: Probe) -> str:
    """The reason why a device does not compute in this precision; empty if it does."""
    if precision is Precision.FLOAT32:
        return ""
    if precision is Precision.FLOAT16 and hardware.on_cpu:
        return "float16 is slow on a CPU: use 'float32' or 'bfloat16'"
    kind, _, index = hardware.device.partition(":")
    if precision is Precision.BFLOAT16 and kind == "cuda":
        major, minor = probe.torch.cuda.get_device_capability(int(index))
        if major < 8:
            return f"compute capability {major}.{minor} has no bfloat16: use 'float16'"
    why = probe.failure(hardware.device, precision.value)
    return f"{hardware.device} does not compute in {precision.value} ({why})" if why else ""


def _order(hardware: Hardware) -> MemoryFormat:
    """The fastest memory format: a GPU's half-precision convolutions want the channels last."""
    if hardware.on_cpu:
        return CPU.memory_format
    half = hardware.precision is not Precision.FLOAT32
    return MemoryFormat.CHANNELS_LAST if half else MemoryFormat.CONTIGUOUS
