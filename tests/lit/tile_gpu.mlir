// RUN: %dodeca-opt %s --split-input-file --pass-pipeline='dodeca-tile{target=cuda:sm_80}' | FileCheck %s --check-prefixes=GPU,CUDA
// RUN: %dodeca-opt %s --split-input-file --pass-pipeline='dodeca-tile{target=hip:gfx942}' | FileCheck %s --check-prefixes=GPU,HIP

// A block of threads runs a program: here each of its two warps has a row, and each thread of a warp
// some neighbours of it at a time. What they have is summed from lane to lane, and one of them stores.
// GPU-LABEL:   gpu.module @kernels
// GPU:           gpu.func @sums(
// GPU-SAME:        dodeca.grid = 4 : i64, dodeca.shared = 0 : i64
// CUDA-SAME:       known_block_size = array<i32: 64, 1, 1>
// HIP-SAME:        known_block_size = array<i32: 128, 1, 1>
// GPU:             gpu.thread_id x
// GPU:             gpu.block_id x
// GPU:             scf.for
// GPU:               vector.load {{.*}} {alignment = 16 : i64} : memref<8x512xf32>, vector<4xf32>
// GPU:               arith.addf {{.*}} : vector<4xf32>
// GPU:             vector.reduction <add>
// CUDA-COUNT-5:    gpu.shuffle xor
// HIP-COUNT-6:     gpu.shuffle xor
// GPU-NOT:         gpu.shuffle
// GPU-NOT:         gpu.barrier
// GPU:             scf.if
// GPU-NEXT:          memref.store
func.func @sums(%x: tensor<8x512xf32>) -> tensor<8xf32> attributes {
    dodeca.schedule = {blocks = {d0 = 2 : i64}, fold = 0 : i64, lanes = 4 : i64, order = [],
    reassociate = true, tiles = {d0 = 2 : i64}, vector = "", warps = 2 : i64}} {
  %0 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<8x512xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Two warps have one row: their sums meet in shared memory.
// GPU-LABEL:     gpu.func @across(
// GPU-SAME:        dodeca.shared = {{256|512}} : i64
// CUDA-COUNT-5:    gpu.shuffle xor
// HIP-COUNT-6:     gpu.shuffle xor
// GPU:             memref.store {{.*}} : memref<1x{{64|128}}xf32, 3>
// GPU-NEXT:        gpu.barrier
// GPU-COUNT-2:     memref.load {{.*}} : memref<1x{{64|128}}xf32, 3>
// GPU:             gpu.barrier
// GPU:             scf.if
// GPU-NEXT:          memref.store {{.*}} : memref<8xf32>
func.func @across(%x: tensor<8x512xf32>) -> tensor<8xf32> attributes {
    dodeca.schedule = {blocks = {d0 = 1 : i64}, fold = 0 : i64, lanes = 4 : i64, order = [],
    reassociate = true, tiles = {d0 = 1 : i64}, vector = "", warps = 2 : i64}} {
  %0 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<8x512xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// A tile of 16 by 32 on matrix instructions: what a turn reads is copied to shared memory while the
// turn before runs, by copies of their own or by way of registers.
// GPU-LABEL:     gpu.func @product(
// GPU-SAME:        dodeca.grid = 8 : i64, dodeca.shared = 6144 : i64
// GPU-DAG:         memref.view {{.*}} memref<2x16x32xf16, 3>
// GPU-DAG:         memref.view {{.*}} memref<2x32x32xf16, 3>
// CUDA:            nvgpu.device_async_copy
// CUDA:            nvvm.cp.async.commit.group
// CUDA:            scf.for
// CUDA:              nvvm.cp.async.wait.group 0
// CUDA-NEXT:         gpu.barrier
// CUDA:              nvgpu.device_async_copy
// CUDA:              vector.load {{.*}} memref<2x16x32xf16, 3>, vector<8xf16>
// CUDA:              nvgpu.ldmatrix {{.*}} transpose = true
// CUDA-COUNT-8:      nvvm.mma.sync
// CUDA-NOT:          nvvm.mma.sync
// HIP:             gpu.barrier
// HIP:             scf.for
// HIP:               vector.load {{.*}} memref<64x64xf16>, vector<8xf16>
// HIP:               vector.load {{.*}} memref<2x16x32xf16, 3>, vector<8xf16>
// HIP-COUNT-4:       amdgpu.mfma 16x16x16
// HIP-NOT:           amdgpu.mfma
// HIP:               vector.store {{.*}} memref<2x16x32xf16, 3>, vector<8xf16>
// HIP:               gpu.barrier
#a = affine_map<(d0, d1, d2) -> (d0, d2)>
#b = affine_map<(d0, d1, d2) -> (d2, d1)>
func.func @product(%x: tensor<64x64xf16>, %y: tensor<64x64xf16>) -> tensor<64x64xf16> attributes {
    dodeca.schedule = {blocks = {d0 = 16 : i64, d1 = 32 : i64}, fold = 0 : i64, lanes = 8 : i64, order = [],
    reassociate = true, tiles = {d0 = 16 : i64, d1 = 32 : i64}, vector = "d1", matrix, warps = 1 : i64,
    depth = 32 : i64, stages = 2 : i64}} {
  %0 = "dodeca.contiguous"(%x) {maps = [#a], fill = 0.0 : f16, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<64x64xf16>) -> tensor<64x64x64xf16>
  %1 = "dodeca.contiguous"(%y) {maps = [#b], fill = 0.0 : f16, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<64x64xf16>) -> tensor<64x64x64xf16>
  %2 = "dodeca.mul"(%0, %1) : (tensor<64x64x64xf16>, tensor<64x64x64xf16>) -> tensor<64x64x64xf16>
  %3 = "dodeca.sum_reduce"(%2) {axis = 2 : i64} : (tensor<64x64x64xf16>) -> tensor<64x64xf16>
  return %3 : tensor<64x64xf16>
}
