"""Tools of others, and what object files say of themselves."""

import shlex
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from dodeca.dialect.errors import CompileError, ParseError, TargetError
from dodeca.runtime import toolchain
from dodeca.runtime.code_object import read_amdgpu_metadata
from dodeca.runtime.device import cpu_identity

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k0(.param .u64 a) {
  .reg .b64 %rd<3>;
  .reg .f32 %f<3>;
  .shared .align 4 .b8 tile[512];
  ld.param.u64 %rd1, [a];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.f32 %f1, [%rd2];
  st.shared.f32 [tile], %f1;
  add.f32 %f2, %f1, %f1;
  st.global.f32 [%rd2], %f2;
  ret;
}
"""
KERNEL = """
@lds = internal addrspace(3) global [64 x float] poison
declare i32 @llvm.amdgcn.workitem.id.x()
define amdgpu_kernel void @k0(ptr addrspace(1) %a, i32 %n, i64 %m) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %q = getelementptr [64 x float], ptr addrspace(3) @lds, i32 0, i32 %t
  store volatile float 1.0, ptr addrspace(3) %q
  %p = getelementptr i32, ptr addrspace(1) %a, i32 %t
  store i32 %n, ptr addrspace(1) %p
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="1,128" }
"""


def test_ptxas_gives_a_cubin_and_resources():
    cubin, resources = toolchain.assemble_ptx(PTX, "sm_80")
    assert cubin.startswith(b"\x7fELF")
    assert 0 < resources.pop("registers") < 32
    assert resources == {"spill_bytes": 0, "shared_bytes": 512, "stack_bytes": 0}


def test_a_ptxas_error_has_a_command_that_repeats_it():
    with pytest.raises(CompileError, match="'adx'") as raised:
        toolchain.assemble_ptx(PTX.replace("add.f32", "adx.f32"), "sm_80")
    command = shlex.split(str(raised.value).rpartition("repeat it with: ")[2])
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode and "'adx'" in again.stdout + again.stderr
    Path(command[-3]).unlink()  # the PTX that was kept for this


def test_tools_that_are_not_there(monkeypatch):
    monkeypatch.setattr(toolchain, "find_ptxas", lambda: None)
    monkeypatch.setattr(toolchain, "find_lld", lambda: None)
    with pytest.raises(TargetError, match="nvidia-cuda-nvcc"):
        toolchain.assemble_ptx(PTX, "sm_80")
    with pytest.raises(TargetError, match="ziglang"):
        toolchain.link_amdgpu(b"")


@pytest.fixture(scope="module")
def amd_object():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    machine = target.create_target_machine(cpu="gfx942", opt=3)
    module = llvm.parse_assembly(KERNEL)
    module.triple, module.data_layout = "amdgcn-amd-amdhsa", str(machine.target_data)
    return machine.emit_object(module)


def test_amdgpu_metadata(amd_object):
    facts = read_amdgpu_metadata(amd_object)
    assert facts["target"] == "amdgcn-amd-amdhsa--gfx942" and facts["version"][0] == 1
    (kernel,) = facts["kernels"]
    assert kernel["name"] == "k0" and kernel["symbol"] == "k0.kd"
    assert 0 < kernel["vgprs"] < 16 and 0 < kernel["sgprs"] < 100
    assert kernel["vgpr_spills"] == kernel["sgpr_spills"] == kernel["private_bytes"] == 0
    assert (kernel["shared_bytes"], kernel["wavefront"], kernel["block_limit"]) == (256, 64, 128)
    own = [one for one in kernel["arguments"] if not one["kind"].startswith("hidden")]
    assert [(one["offset"], one["size"], one["kind"]) for one in own] == [
        (0, 8, "global_buffer"),
        (8, 4, "by_value"),
        (16, 8, "by_value"),
    ]


def test_a_file_without_metadata():
    with pytest.raises(ParseError, match="not a 64-bit little-endian ELF"):
        read_amdgpu_metadata(b"no ELF file")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    with pytest.raises(ParseError, match="no note with AMDGPU metadata"):
        read_amdgpu_metadata(machine.emit_object(llvm.parse_assembly("")))


def test_an_amd_object_links(amd_object):
    linked = toolchain.link_amdgpu(amd_object)
    assert read_amdgpu_metadata(linked)["kernels"][0]["name"] == "k0"


def test_this_cpu_has_a_name():
    cpu = cpu_identity()
    assert cpu.model and cpu.architecture and list(cpu.features) == sorted(cpu.features)
