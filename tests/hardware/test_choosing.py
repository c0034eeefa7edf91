"""The choice of the hardware, on boxes that are not here."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from fededge.errors import ConfigError
from fededge.hardware import CPU, Hardware, MemoryFormat, Precision, Probe, choose, examine
from tests.hardware.fakes import ORIN, RTX, FakeGpu, FakeTorch, box, graphics_card, jetson

GB = 2**30
JETPACK = FakeTorch(["sm_87"], "12.6", [ORIN])
CPU_ONLY = FakeTorch()


def found(probe: Probe) -> str:
    """The only finding of an automatic choice, which takes the CPU."""
    chosen = examine(probe=probe)
    assert chosen.hardware.on_cpu
    assert chosen.hardware.reason == "the CPU is used: the GPU cannot be used"
    (finding,) = chosen.findings
    return str(finding)


def refused(device: str, probe: Probe, precision: str = "float32") -> str:
    with pytest.raises(ConfigError) as caught:
        choose(device, precision=precision, probe=probe)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_gpu_that_works_is_taken(tmp_path: Path) -> None:
    chosen = examine(probe=jetson(tmp_path, JETPACK))
    assert chosen.findings == ()
    assert chosen.hardware.device == "cuda:0"
    assert chosen.hardware.reason == ("cuda:0 is used: Orin works, 6.0 GB of its memory are free")
    assert chosen.hardware.threads == 1


def test_a_box_without_a_gpu_takes_the_cpu_without_a_warning(tmp_path: Path) -> None:
    chosen = examine(probe=box(tmp_path, CPU_ONLY))
    assert chosen.findings == ()
    assert chosen.hardware.reason == "the CPU is used: torch sees no GPU"


def test_torch_for_the_cpu_on_a_jetson_is_a_finding(tmp_path: Path) -> None:
    assert found(jetson(tmp_path, CPU_ONLY)) == (
        "torch 2.9.0 is built for the CPU only, on NVIDIA Jetson Orin Nano Developer Kit; fix: "
        "install the torch that NVIDIA builds for this JetPack (docs/jetson.md)"
    )


def test_a_jetson_is_known_by_its_release_file_too(tmp_path: Path) -> None:
    probe = box(tmp_path, CPU_ONLY, {"etc/nv_tegra_release": "# R36 (release)"})
    assert "built for the CPU only, on NVIDIA Jetson" in found(probe)


def test_torch_for_the_cpu_on_a_box_with_the_driver_is_a_finding(tmp_path: Path) -> None:
    assert found(graphics_card(tmp_path, CPU_ONLY)) == (
        "torch 2.9.0 is built for the CPU only, on a box with NVIDIA's driver 470.82.01; fix: "
        "install a CUDA build of torch (https://pytorch.org/get-started)"
    )


def test_torch_without_this_gpus_architecture_is_a_finding(tmp_path: Path) -> None:
    built = FakeTorch(["sm_90", "sm_100"], "13.0", [ORIN])
    assert found(jetson(tmp_path, built)) == (
        "torch 2.9.0 has no code for cuda:0, Orin of compute capability 8.7 (it has sm_90, sm_100)"
        "; fix: install the torch that NVIDIA builds for this JetPack (docs/jetson.md)"
    )
    assert built.counted == []


def test_a_kernel_image_that_does_not_load_is_the_same_finding(tmp_path: Path) -> None:
    gpu = FakeGpu("Orin", (8, 7), error="CUDA error: no kernel image is available for execution")
    assert "has no code for cuda:0" in found(jetson(tmp_path, FakeTorch(["sm_80"], "13.0", [gpu])))


def test_a_driver_too_old_is_a_finding(tmp_path: Path) -> None:
    error = "The NVIDIA driver on your system is too old (found version 11040). Please update."
    assert found(graphics_card(tmp_path, FakeTorch(["sm_86"], "13.0", error=error))) == (
        "NVIDIA's driver 470.82.01 knows CUDA 11.4, too old for torch's 13.0; fix: update NVIDIA's "
        "driver, or install a torch for an older CUDA"
    )


def test_a_gpu_that_may_not_be_opened_is_a_finding(tmp_path: Path) -> None:
    probe = jetson(tmp_path, FakeTorch(["sm_87"], "12.6", error="CUDA driver: permission denied"))
    assert "(CUDA driver: permission denied); fix: check that this user may open" in found(probe)


def test_too_little_memory_is_a_finding(tmp_path: Path) -> None:
    full = FakeGpu("RTX 3060", (8, 6), free=100 * 2**20)
    assert found(graphics_card(tmp_path, FakeTorch(["sm_86"], "13.0", [full]))) == (
        "cuda:0 has 100 MB of free memory, training needs 512; fix: end other programs that use "
        "the GPU: nvidia-smi"
    )


def test_a_jetsons_page_cache_is_free_memory(tmp_path: Path) -> None:
    """CUDA counts 100 MB as free; 4 GB can be freed."""
    gpu = FakeGpu("Orin", (8, 7), free=100 * 2**20)
    chosen = examine(probe=jetson(tmp_path, FakeTorch(["sm_87"], "12.6", [gpu])))
    assert chosen.hardware.device == "cuda:0"
    assert "4.0 GB" in chosen.hardware.reason


def test_the_first_gpu_that_works_is_taken(tmp_path: Path) -> None:
    broken = FakeGpu("RTX 3060", (8, 6), error="CUDA error: uncorrectable ECC error")
    probe = graphics_card(tmp_path, FakeTorch(["sm_86"], "13.0", [broken, RTX]))
    chosen = examine(probe=probe)
    assert chosen.hardware.device == "cuda:1"
    assert [str(each) for each in chosen.findings] == [
        "cuda:0 fails a small computation (CUDA error: uncorrectable ECC error); fix: look for the "
        "driver's errors: dmesg | grep -i -e nvrm -e nvgpu"
    ]


def test_another_accelerator_is_taken(tmp_path: Path) -> None:
    chosen = examine(probe=box(tmp_path, FakeTorch(other="xpu")))
    assert chosen.hardware.device == "xpu:0"
    assert examine("xpu", probe=box(tmp_path, FakeTorch(other="xpu"))).hardware.device == "xpu:0"


def test_an_accelerator_without_float64_is_not_taken(tmp_path: Path) -> None:
    probe = box(tmp_path, FakeTorch(other="mps", lacks=[torch.float64]))
    why = "(the mps framework doesn't support torch.float64)"
    assert found(probe) == (
        "mps:0 is not used: it does not compute in float64, which sums need "
        f'{why}; fix: device = "cpu"'
    )
    assert refused("mps", probe) == (
        f"device is 'mps', but it does not compute in float64, which sums need {why}"
    )


def test_an_accelerator_that_does_not_work_is_a_finding(tmp_path: Path) -> None:
    probe = box(tmp_path, FakeTorch(other="xpu", lacks=[torch.float32]))
    assert found(probe).startswith("xpu:0 is not used: it fails a small computation (the xpu")


def test_a_rocm_build_is_not_judged_by_the_architectures_of_cuda(tmp_path: Path) -> None:
    card = FakeGpu("Radeon RX 7900 XTX", (11, 0))
    chosen = examine(probe=box(tmp_path, FakeTorch(["gfx1030", "gfx1100"], None, [card])))
    assert (chosen.hardware.device, chosen.findings) == ("cuda:0", ())


def test_findings_are_warnings_and_the_choice_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hardware"):
        choose(probe=jetson(tmp_path, CPU_ONLY))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "fix: install the torch" in caplog.messages[0]
    assert caplog.messages[1] == "the CPU is used: the GPU cannot be used"


def test_a_named_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused("cuda", box(tmp_path, CPU_ONLY)) == (
        "device is 'cuda', but torch 2.9.0 sees no such device here: use 'auto' or 'cpu'"
    )
    assert "torch 2.9.0 sees no such device" in refused("mps", box(tmp_path, CPU_ONLY))
    assert "but torch 2.9.0 is built for the CPU only" in refused(
        "cuda:0", jetson(tmp_path, CPU_ONLY)
    )


def test_a_number_too_high_says_how_many_there_are(tmp_path: Path) -> None:
    two = graphics_card(tmp_path, FakeTorch(["sm_86"], "13.0", [RTX, RTX]))
    assert refused("cuda:7", two) == ("device is 'cuda:7', but there are 2: use cuda:0 to cuda:1")
    assert choose("cuda:1", probe=two).device == "cuda:1"
    one = graphics_card(tmp_path, FakeTorch(["sm_86"], "13.0", [RTX]))
    assert refused("cuda:1", one) == "device is 'cuda:1', but there is one: use cuda:0"


def test_a_named_gpu_that_does_not_work_is_refused(tmp_path: Path) -> None:
    probe = jetson(tmp_path, FakeTorch(["sm_90"], "13.0", [ORIN]))
    assert "device is 'cuda', but torch 2.9.0 has no code for cuda:0" in refused("cuda", probe)


@pytest.mark.parametrize("device", ["gpu", "gpu:0", "GPU", "cpu:0", "auto:1", "cuda:", "", "a b"])
def test_a_device_that_cannot_be_is_refused(tmp_path: Path, device: str) -> None:
    said = f"device is '{device}', it must be like 'auto', 'cpu', 'cuda', 'cuda:1'"
    assert refused(device, box(tmp_path, CPU_ONLY)) == said


def test_precisions_of_the_cpu(tmp_path: Path) -> None:
    probe = box(tmp_path, CPU_ONLY)
    assert choose("cpu", precision="bfloat16", probe=probe).precision is Precision.BFLOAT16
    assert refused("cpu", probe, "float16") == (
        "precision is 'float16', but float16 is slow on a CPU: use 'float32' or 'bfloat16'"
    )
    assert refused("cpu", probe, "fp16") == (
        "precision is 'fp16', it must be one of: float32, bfloat16, float16"
    )


def test_auto_takes_float32_where_the_wish_does_not_work(tmp_path: Path) -> None:
    """A box whose GPU is lost goes on; a device that was named does not."""
    chosen = examine("auto", precision="float16", probe=box(tmp_path, CPU_ONLY))
    assert chosen.hardware.precision is Precision.FLOAT32
    assert str(chosen.findings[0]).startswith("float32 is used: float16 is slow")


def test_bfloat16_needs_compute_capability_8(tmp_path: Path) -> None:
    turing = FakeTorch(["sm_75"], "13.0", [FakeGpu("T4", (7, 5))])
    assert refused("cuda", box(tmp_path, turing), "bfloat16") == (
        "precision is 'bfloat16', but compute capability 7.5 has no bfloat16: use 'float16'"
    )
    assert choose("cuda", precision="float16", probe=box(tmp_path, turing)).device == "cuda:0"


def test_the_memory_format_follows_device_and_precision(tmp_path: Path) -> None:
    probe = jetson(tmp_path, JETPACK)
    assert choose("cpu", probe=probe).memory_format is CPU.memory_format
    assert choose("cuda", probe=probe).memory_format is MemoryFormat.CONTIGUOUS
    half = choose("cuda", precision="float16", probe=probe)
    assert half.memory_format is MemoryFormat.CHANNELS_LAST
    named = choose("cuda", memory_format="channels_last", probe=probe)
    assert named.memory_format is MemoryFormat.CHANNELS_LAST


def test_threads_follow_the_network_unless_they_are_set(tmp_path: Path) -> None:
    probe = jetson(tmp_path, JETPACK)
    assert choose("cpu", macs=1.6e6, probe=probe).threads == 1
    assert choose("cpu", macs=4.1e7, probe=probe).threads == 4
    assert choose("cpu", threads=3, macs=4.1e7, probe=probe).threads == 3
    assert choose("cuda", macs=4.1e7, probe=probe).threads == 1


def test_the_machine_that_runs_this_test_is_examined() -> None:
    assert isinstance(choose("auto"), Hardware)
    assert choose("cpu").device == "cpu"


def test_more_threads_than_cores_are_taken_with_a_warning(tmp_path: Path) -> None:
    """The bits of a simulation with as many threads may be wanted."""
    probe = box(tmp_path, CPU_ONLY, {})
    chosen = examine("cpu", threads=1000, probe=probe)
    assert chosen.hardware.threads == 1000
    assert [str(each) for each in chosen.findings] == [
        "1000 threads share 4 cores: that is slower; fix: threads = 4, or 0"
    ]
    assert examine("cpu", threads=4, probe=probe).findings == ()
