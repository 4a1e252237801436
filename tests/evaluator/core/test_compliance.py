"""Who did the work, by what a trace says."""

from __future__ import annotations

import pytest
import torch

from kernelevo_evaluator.messages.runner import Traced, TracedPart
from kernelevo_evaluator.referee.compliance import share_on_cpu, share_on_gpu
from kernelevo_evaluator.runner.tracing import trace


def traced(wall=100.0, **parts):
    return Traced(nonce=1, wall_us=wall, parts=tuple(TracedPart(name=n, us=us, count=1) for n, us in parts.items()))


def of(names, wall=100.0):
    return traced(wall, **names)


LIBRARY = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, float)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*, int)",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "ampere_sgemm_128x64_tn",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(cutlass_80::Params)",
    "void cub::CUB_200500_900_NS::DeviceReduceKernel<float>(float)",
    "Memcpy DtoD (Device -> Device)",
    "Memset (Device)",
    "triton_poi_fused_add_relu_0",
    "triton_red_fused__softmax_1",
]
OWN = ["rows", "softmax_kernel", "_fused_rms_norm", "step(float const*, float*, int)", "triton_softmax", "my_reduce"]


@pytest.mark.parametrize("name", LIBRARY)
def test_kernels_of_libraries(name):
    share = share_on_gpu(of({name: 90.0, "rows": 10.0}))
    assert not share.complies
    assert share.library == pytest.approx(0.9)
    assert name[:60] in share.describe()


@pytest.mark.parametrize("name", OWN)
def test_kernels_of_ones_own(name):
    assert share_on_gpu(of({name: 30.0, LIBRARY[0]: 70.0})).complies
    assert share_on_gpu(of({name: 30.0})).own == 1.0


def test_a_decoy_is_seen_by_its_share():
    assert not share_on_gpu(of({"decoy": 2.0, LIBRARY[0]: 60.0})).complies
    nothing = share_on_gpu(of({}))
    assert nothing.traced_us == 0.0, "nothing is known, and nobody is convicted"


def test_a_trace_that_hides_its_kernels_leaves_time_unexplained():
    share = share_on_gpu(of({"decoy": 10.0}))
    assert share.complies
    assert share.unexplained(100.0)
    assert not share.unexplained(15.0), "a call so short is a matter of launching"


def test_operators_on_a_processor():
    assert not share_on_cpu(of({"aten.addmm.default": 80.0, "aten.relu.default": 10.0})).complies
    assert share_on_cpu(of({"aten.empty.memory_format": 95.0})).own == 1.0
    assert share_on_cpu(of({"aten.clone.default": 20.0})).own == pytest.approx(0.8)


def test_what_runs_is_traced():
    layer = torch.nn.Linear(1024, 1024)
    with torch.no_grad():
        library = trace(lambda x: torch.relu(layer(x)), [torch.randn(512, 1024)], torch.device("cpu"), 7)
        own = trace(lambda x: sum(range(10_000)) and torch.empty_like(x), [torch.randn(4)], torch.device("cpu"), 8)
    assert library.nonce == 7
    assert library.parts[0].name.startswith("aten.addmm")
    assert share_on_cpu(library).library > share_on_cpu(own).library
