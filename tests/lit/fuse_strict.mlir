// RUN: %dodeca-opt %s --pass-pipeline='dodeca-fuse{precision=strict}' | FileCheck %s

// Hoisting a factor reorders roundings: the strict policy leaves the sum as it was written.
// CHECK-LABEL: func.func @hoisted(
// CHECK:       func.func private
// CHECK-SAME:    reassociate = false
// CHECK:         %[[P:.*]] = "dodeca.mul"
// CHECK-NEXT:    %[[S:.*]] = "dodeca.sum_reduce"(%[[P]])
// CHECK-NEXT:    return %[[S]]
#spread = affine_map<(d0, d1) -> (d0)>
func.func @hoisted(%x: tensor<16xf32>, %y: tensor<16x64xf32>) -> tensor<16xf32> {
  %0 = "dodeca.contiguous"(%x) {maps = [#spread], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<16xf32>) -> tensor<16x64xf32>
  %1 = "dodeca.mul"(%0, %y) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %2 = "dodeca.sum_reduce"(%1) {axis = 1 : i64} : (tensor<16x64xf32>) -> tensor<16xf32>
  return %2 : tensor<16xf32>
}
