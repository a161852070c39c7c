// RUN: %dodeca-opt %s --split-input-file --pass-pipeline=dodeca-tile | FileCheck %s

// The schedule in the attribute is the one that is used: rows of 2, vectors of 4 along d1, the sum
// over r0 a loop that carries the tile.
// CHECK-LABEL: func.func @matmul(
// CHECK-SAME:    memref<8x16xf32>
// CHECK-SAME:    dodeca.grid = 16
// CHECK:         scf.for
// CHECK:           scf.for {{.*}} iter_args({{.*}}) -> (vector<2x4xf32>)
// CHECK:             vector.load {{.*}} memref<16x16xf32>, vector<4xf32>
// CHECK:             arith.mulf {{.*}} fastmath<contract> : vector<2x4xf32>
// CHECK:             scf.yield {{.*}} : vector<2x4xf32>
// CHECK-COUNT-2:   vector.store {{.*}} memref<8x16xf32>, vector<4xf32>

#a = affine_map<(d0, d1, d2) -> (d0, d2)>
#b = affine_map<(d0, d1, d2) -> (d2, d1)>
func.func @matmul(%x: tensor<8x16xf32>, %y: tensor<16x16xf32>) -> tensor<8x16xf32> attributes {
    dodeca.schedule = {blocks = {d0 = 2 : i64, d1 = 4 : i64}, fold = 0 : i64, lanes = 4 : i64, order = [],
    reassociate = true, tiles = {d0 = 2 : i64, d1 = 4 : i64}, vector = "d1"}} {
  %0 = "dodeca.contiguous"(%x) {maps = [#a], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<8x16xf32>) -> tensor<8x16x16xf32>
  %1 = "dodeca.contiguous"(%y) {maps = [#b], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<16x16xf32>) -> tensor<8x16x16xf32>
  %2 = "dodeca.mul"(%0, %1) : (tensor<8x16x16xf32>, tensor<8x16x16xf32>) -> tensor<8x16x16xf32>
  %3 = "dodeca.sum_reduce"(%2) {axis = 2 : i64} : (tensor<8x16x16xf32>) -> tensor<8x16xf32>
  return %3 : tensor<8x16xf32>
}

// -----

// A row's sum does not depend on the column: it is computed before the loop over columns.
// CHECK-LABEL: func.func @centred(
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK:             vector.load
// CHECK:           scf.for
// CHECK:             vector.load
// CHECK:             vector.store
#row = affine_map<(d0, d1) -> (d0)>
func.func @centred(%x: tensor<8x64xf32>) -> tensor<8x64xf32> attributes {
    dodeca.schedule = {blocks = {d0 = 1 : i64, d1 = 64 : i64}, fold = 0 : i64, lanes = 4 : i64, order = ["d1"],
    reassociate = true, tiles = {d0 = 1 : i64, d1 = 4 : i64}, vector = "d1"}} {
  %0 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<8x64xf32>) -> tensor<8xf32>
  %1 = "dodeca.contiguous"(%0) {maps = [#row], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<8xf32>) -> tensor<8x64xf32>
  %2 = "dodeca.add"(%x, %1) : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
  return %2 : tensor<8x64xf32>
}

// -----

// A bool takes a byte in memory, and an index out of bounds is never read.
// CHECK-LABEL: func.func @shifted(
// CHECK-SAME:    memref<8xi8>
// CHECK:         arith.maxsi
// CHECK:         memref.load
#shift = affine_map<(d0) -> (d0 - 1)>
func.func @shifted(%x: tensor<8xi1>) -> tensor<8xi1> {
  %0 = "dodeca.contiguous"(%x) {maps = [#shift], fill = true, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<8xi1>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}
