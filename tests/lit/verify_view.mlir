// RUN: %dodeca-opt %s --split-input-file --verify-diagnostics

func.func @map_missing(%x: tensor<4xf32>) {
  // expected-error @below {{contiguous: 1 sources, but 0 maps}}
  %0 = "dodeca.contiguous"(%x) {maps = [], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @map_dimensions(%x: tensor<4xf32>) {
  // expected-error @below {{contiguous: map 0 (d0) -> (d0) has 1 dimensions, 0 symbols and 1 results, expected 2, 0 and 1}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4x4xf32>
  return
}

// -----

#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @map_symbols(%x: tensor<4xf32>) {
  // expected-error @below {{has 1 dimensions, 1 symbols and 1 results, expected 1, 0 and 1}}
  %0 = "dodeca.contiguous"(%x) {maps = [#symbol], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @map_results(%x: tensor<4x4xf32>) {
  // expected-error @below {{has 1 dimensions, 0 symbols and 1 results, expected 1, 0 and 2}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4x4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @second_map(%x: tensor<4xf32>, %y: tensor<f32>) {
  // expected-error @below {{contiguous: map 1 (d0) -> (d0) has 1 dimensions, 0 symbols and 1 results, expected 1, 0 and 0}}
  %0 = "dodeca.contiguous"(%x, %y) {maps = [#same, #same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return
}

// -----

func.func @no_map_at_all(%x: tensor<4xf32>) {
  // expected-error @below {{contiguous: maps must be an array of affine maps, got [1]}}
  %0 = "dodeca.contiguous"(%x) {maps = [1], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @source_dtype(%x: tensor<4xi32>) {
  // expected-error @below {{contiguous: source 0 is int32, the result float32}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xi32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @fill_type(%x: tensor<4xf32>) {
  // expected-error @below {{contiguous: the fill is i64, the result tensor<4xf32>}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @fill_signedness(%x: tensor<4xui8>) {
  // expected-error @below {{contiguous: the fill is i8, the result tensor<4xui8>}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0 : i8, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xui8>) -> tensor<4xui8>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @fill_no_scalar(%x: tensor<4xf32>) {
  // expected-error @below {{expected a scalar, got "zero"}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = "zero", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @domain_count(%x: tensor<4xf32>, %y: tensor<4xf32>) {
  // expected-error @below {{contiguous: 2 sources, but 1 domains}}
  %0 = "dodeca.contiguous"(%x, %y) {maps = [#same, #same], domains = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @domain_symbols(%x: tensor<4xf32>) {
  // expected-error @below {{contiguous: domain 0 (d0)[s0] -> (s0) has 1 dimensions, 1 symbols and 1 results, expected 1, 0 and 1}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], domains = [#symbol], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @index_map_missing(%x: tensor<4xf32>, %i: tensor<4xi64>) {
  // expected-error @below {{contiguous: 1 indices, but 0 index maps}}
  %0 = "dodeca.contiguous"(%x, %i) {maps = [#symbol], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>} : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @index_dtype(%x: tensor<4xf32>, %i: tensor<4xf32>) {
  // expected-error @below {{contiguous: index 0 is float32, expected integer or bool}}
  %0 = "dodeca.contiguous"(%x, %i) {maps = [#symbol], index_maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

#two = affine_map<(d0) -> (d0, d0)>
#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @index_map_results(%x: tensor<4xf32>, %i: tensor<4xi64>) {
  // expected-error @below {{contiguous: index map 0 (d0) -> (d0, d0) has 1 dimensions, 0 symbols and 2 results, expected 1, 0 and 1}}
  %0 = "dodeca.contiguous"(%x, %i) {maps = [#symbol], index_maps = [#two], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>} : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  return
}

// -----

#next = affine_map<(d0) -> (d0 + 1)>
#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @index_map_above(%x: tensor<4xf32>, %i: tensor<4xi64>) {
  // expected-error @below {{contiguous: index map 0 reaches d0 + 1 in [1, 4] along axis 0 of tensor<4xi64>}}
  %0 = "dodeca.contiguous"(%x, %i) {maps = [#symbol], index_maps = [#next], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>} : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  return
}

// -----

#back = affine_map<(d0) -> (2 - d0)>
#symbol = affine_map<(d0)[s0] -> (s0)>
func.func @index_map_below(%x: tensor<4xf32>, %i: tensor<4xi64>) {
  // expected-error @below {{contiguous: index map 0 reaches -d0 + 2 in [-1, 2] along axis 0 of tensor<4xi64>}}
  %0 = "dodeca.contiguous"(%x, %i) {maps = [#symbol], index_maps = [#back], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>} : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  return
}

// -----

#before = affine_map<(d0) -> (d0 - 1)>
#gather = affine_map<(d0)[s0, s1] -> (s0)>
func.func @index_map_below_dynamic(%x: tensor<4xf32>, %i: tensor<?xi64>, %n: index) {
  // expected-error @below {{contiguous: index map 0 reaches d0 - 1 in [-1, inf] along axis 0 of tensor<?xi64>}}
  %0 = "dodeca.contiguous"(%x, %i, %n) {maps = [#gather], index_maps = [#before], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 1, 0, 1>} : (tensor<4xf32>, tensor<?xi64>, index) -> tensor<?xf32>
  return
}

// -----

#same = affine_map<(d0)[s0] -> (d0)>
func.func @extent_missing(%x: tensor<4xf32>) {
  // expected-error @below {{contiguous: tensor<?xf32> has 1 dynamic sizes, but 0 extents are given}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<?xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @extent_too_many(%x: tensor<4xf32>, %n: index) {
  // expected-error @below {{contiguous: tensor<4xf32> has 0 dynamic sizes, but 1 extents are given}}
  %0 = "dodeca.contiguous"(%x, %n) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 1>} : (tensor<4xf32>, index) -> tensor<4xf32>
  return
}

// -----

#same = affine_map<(d0)[s0] -> (d0)>
func.func @extent_no_index(%x: tensor<4xf32>, %n: tensor<i64>) {
  // expected-error @below {{expected 'index' but got 'tensor<i64>'}}
  %0 = "dodeca.contiguous"(%x, %n) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 0, 0, 0, 1>} : (tensor<4xf32>, tensor<i64>) -> tensor<?xf32>
  return
}

// -----

#same = affine_map<(d0) -> (d0)>
func.func @segments(%x: tensor<4xf32>) {
  // expected-error @below {{sum of elements in 'operandSegmentSizes' attribute must be equal to the number of operands}}
  %0 = "dodeca.contiguous"(%x) {maps = [#same], fill = 0.0 : f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
