// RUN: %dodeca-opt %s --split-input-file --pass-pipeline=dodeca-fuse | FileCheck %s

// A product's sum, an elementwise chain and a second reduction become one kernel; the views are
// index maps of its loads.
// CHECK-LABEL: func.func @one_kernel(
// CHECK-NEXT:    %[[R:.*]] = call @[[K:k0_[a-z_]+]](%{{.*}}) {dodeca.predicted = {{[0-9.E-]+}} : f64}
// CHECK-NEXT:    return %[[R]]
// CHECK:       func.func private @[[K]](
// CHECK-SAME:    dodeca.schedule
// CHECK:         dodeca.mul
// CHECK:         dodeca.sum_reduce
// CHECK:         dodeca.exp2
// CHECK:         dodeca.max_reduce
// CHECK-NOT:   func.func
#a = affine_map<(d0, d1, d2) -> (d0, d2)>
#b = affine_map<(d0, d1, d2) -> (d2, d1)>
func.func @one_kernel(%x: tensor<16x8xf32>, %y: tensor<8x4xf32>) -> tensor<16xf32> {
  %0 = "dodeca.contiguous"(%x) {maps = [#a], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<16x8xf32>) -> tensor<16x4x8xf32>
  %1 = "dodeca.contiguous"(%y) {maps = [#b], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<8x4xf32>) -> tensor<16x4x8xf32>
  %2 = "dodeca.mul"(%0, %1) : (tensor<16x4x8xf32>, tensor<16x4x8xf32>) -> tensor<16x4x8xf32>
  %3 = "dodeca.sum_reduce"(%2) {axis = 2 : i64} : (tensor<16x4x8xf32>) -> tensor<16x4xf32>
  %4 = "dodeca.exp2"(%3) : (tensor<16x4xf32>) -> tensor<16x4xf32>
  %5 = "dodeca.max_reduce"(%4) {axis = 1 : i64} : (tensor<16x4xf32>) -> tensor<16xf32>
  return %5 : tensor<16xf32>
}

// -----

// What does not depend on the summed axis leaves the sum.
// CHECK-LABEL: func.func @hoisted(
// CHECK:       func.func private
// CHECK:         %[[S:.*]] = "dodeca.sum_reduce"
// CHECK:         "dodeca.mul"({{.*}}%[[S]]{{.*}})
#spread = affine_map<(d0, d1) -> (d0)>
func.func @hoisted(%x: tensor<16xf32>, %y: tensor<16x64xf32>) -> tensor<16xf32> {
  %0 = "dodeca.contiguous"(%x) {maps = [#spread], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<16xf32>) -> tensor<16x64xf32>
  %1 = "dodeca.mul"(%0, %y) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %2 = "dodeca.sum_reduce"(%1) {axis = 1 : i64} : (tensor<16x64xf32>) -> tensor<16xf32>
  return %2 : tensor<16xf32>
}

// -----

// Equal computations are one kernel, called twice.
// CHECK-LABEL: func.func @shared(
// CHECK-NEXT:    call @[[K:k0_[a-z_0-9]+]](%arg0)
// CHECK-NEXT:    call @[[K]](%arg1)
// CHECK:       func.func private @[[K]](
// CHECK-NOT:   func.func private
func.func @shared(%x: tensor<16xf32>, %y: tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) {
  %0 = "dodeca.exp2"(%x) : (tensor<16xf32>) -> tensor<16xf32>
  %1 = "dodeca.exp2"(%y) : (tensor<16xf32>) -> tensor<16xf32>
  return %0, %1 : tensor<16xf32>, tensor<16xf32>
}

// -----

// Nothing to compute, nothing to call.
// CHECK-LABEL: func.func @identity(%arg0: tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:    return %arg0
func.func @identity(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
