"""Which dtype the hardware is fast in, by what the kernel says of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captioner.device import best_dtype


@pytest.mark.parametrize(
    ("cpuinfo", "dtype", "reason"),
    [  # as they are on AMD's Zen 5, an ARM of Amazon's, and Intel's Ice Lake
        ("flags\t\t: fpu avx512_bf16 avx512_vnni\n", "bfloat16", "the CPU has avx512_bf16"),
        ("Features\t: fp asimd i8mm bf16 dgh\n", "bfloat16", "the CPU has bf16"),
        ("flags\t: fpu avx512_vnni\nbugs\t\t: bf16\n", "float32", "the CPU has no bfloat16"),
    ],
)
def test_bfloat16_where_the_cpu_has_it(
    cpuinfo: str, dtype: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr("captioner.device.Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert best_dtype(torch.device("cpu")) == (getattr(torch, dtype), reason)
