// RUN: %dodeca-opt %s --pass-pipeline='dodeca-fuse,dodeca-tile,dodeca-lower' | FileCheck %s --check-prefix=CPU
// RUN: %dodeca-opt %s --pass-pipeline='dodeca-fuse{target=cuda:sm_90},dodeca-tile{target=cuda:sm_90},dodeca-lower{target=cuda:sm_90}' | FileCheck %s --check-prefix=CUDA
// RUN: %dodeca-opt %s --pass-pipeline='dodeca-fuse{target=hip:gfx942},dodeca-tile{target=hip:gfx942},dodeca-lower{target=hip:gfx942}' | FileCheck %s --check-prefix=HIP

// CPU:       llvm.func @k0_{{.*}}(%arg0: !llvm.ptr {{.*}}, %arg1: !llvm.ptr {{.*}}, %arg2: i64, %arg3: i64)
// CPU-NOT:   unrealized_conversion_cast
// CPU-NOT:   llvm.call @

// CUDA:      gpu.module @kernels
// CUDA:        llvm.func @k0_{{.*}} attributes {{.*}}nvvm.kernel
// CUDA:        nvvm.read.ptx.sreg.ctaid.x
// CUDA-NOT:    llvm.call @

// HIP:       gpu.module @kernels
// HIP:         llvm.func @k0_{{.*}} attributes {{.*}}rocdl.kernel
// HIP:         rocdl.workgroup.id.x
// HIP-NOT:     llvm.call @
func.func @every_function(%x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = "dodeca.sqrt"(%x) : (tensor<16xf32>) -> tensor<16xf32>
  %1 = "dodeca.exp2"(%0) : (tensor<16xf32>) -> tensor<16xf32>
  %2 = "dodeca.log2"(%1) : (tensor<16xf32>) -> tensor<16xf32>
  %3 = "dodeca.sin"(%2) : (tensor<16xf32>) -> tensor<16xf32>
  %4 = "dodeca.recip"(%3) : (tensor<16xf32>) -> tensor<16xf32>
  %5 = "dodeca.mod"(%4, %x) : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  return %5 : tensor<16xf32>
}
