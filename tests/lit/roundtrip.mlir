// Every operation of the dialect is read, verified and printed, and what is printed reads back the
// same, in generic form too.
// RUN: %dodeca-opt %s | FileCheck %s
// RUN: %dodeca-opt %s | %dodeca-opt - | FileCheck %s
// RUN: %dodeca-opt %s --mlir-print-op-generic | %dodeca-opt - | FileCheck %s

#swap = affine_map<(d0, d1) -> (d1, d0)>
#row = affine_map<(d0, d1)[s0] -> (s0, d1)>
#first = affine_map<(d0, d1) -> (d0)>
#same = affine_map<(d0) -> (d0)>
#one = affine_map<(d0)[s0] -> (d0)>
#pick = affine_map<(d0)[s0] -> (s0 - 1)>
#always = affine_map<(d0)[s0] -> (0)>
#dynamic = affine_map<(d0)[s0] -> (s0 - 1 - d0)>

// CHECK-LABEL: func.func @unary
func.func @unary(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  // CHECK: "dodeca.exp2"(%{{.*}}) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %0 = "dodeca.exp2"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK: "dodeca.log2"
  %1 = "dodeca.log2"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK: "dodeca.sin"
  %2 = "dodeca.sin"(%1) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK: "dodeca.sqrt"
  %3 = "dodeca.sqrt"(%2) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK: "dodeca.recip"
  %4 = "dodeca.recip"(%3) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %4 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @binary
func.func @binary(%x: tensor<4xbf16>, %y: tensor<4xbf16>) -> tensor<4xi1> {
  // CHECK: "dodeca.add"(%{{.*}}, %{{.*}}) : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xbf16>
  %0 = "dodeca.add"(%x, %y) : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xbf16>
  // CHECK: "dodeca.mul"
  %1 = "dodeca.mul"(%0, %y) : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xbf16>
  // CHECK: "dodeca.mod"
  %2 = "dodeca.mod"(%1, %y) : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xbf16>
  // CHECK: "dodeca.less_than"(%{{.*}}) : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xi1>
  %3 = "dodeca.less_than"(%2, %y) : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xi1>
  return %3 : tensor<4xi1>
}

// CHECK-LABEL: func.func @reductions
func.func @reductions(%x: tensor<2x3x?xi32>) -> tensor<3xi32> {
  // CHECK: "dodeca.sum_reduce"(%{{.*}}) {axis = 2 : i64} : (tensor<2x3x?xi32>) -> tensor<2x3xi32>
  %0 = "dodeca.sum_reduce"(%x) {axis = 2 : i64} : (tensor<2x3x?xi32>) -> tensor<2x3xi32>
  // CHECK: "dodeca.max_reduce"(%{{.*}}) {axis = 0 : i64} : (tensor<2x3xi32>) -> tensor<3xi32>
  %1 = "dodeca.max_reduce"(%0) {axis = 0 : i64} : (tensor<2x3xi32>) -> tensor<3xi32>
  return %1 : tensor<3xi32>
}

// CHECK-LABEL: func.func @transpose
func.func @transpose(%x: tensor<2x3xui8>) -> tensor<3x2xui8> {
  // CHECK: "dodeca.contiguous"(%{{.*}}) {fill = 0 : ui8, maps = [#map{{[0-9]*}}], operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
  %0 = "dodeca.contiguous"(%x) {maps = [#swap], fill = 0 : ui8, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<2x3xui8>) -> tensor<3x2xui8>
  return %0 : tensor<3x2xui8>
}

// CHECK-LABEL: func.func @gather
func.func @gather(%x: tensor<9x4xf16>, %i: tensor<5xi64>) -> tensor<5x4xf16> {
  // CHECK: "dodeca.contiguous"{{.*}}index_maps = [#map{{[0-9]*}}]
  %0 = "dodeca.contiguous"(%x, %i) {maps = [#row], index_maps = [#first], fill = 0x7E00 : f16, operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>} : (tensor<9x4xf16>, tensor<5xi64>) -> tensor<5x4xf16>
  return %0 : tensor<5x4xf16>
}

// CHECK-LABEL: func.func @select
func.func @select(%c: tensor<4xi1>, %x: tensor<4xf64>, %y: tensor<4xf64>) -> tensor<4xf64> {
  // CHECK: "dodeca.contiguous"{{.*}}domains = [#map{{[0-9]*}}, #map{{[0-9]*}}]
  %0 = "dodeca.contiguous"(%x, %y, %c) {maps = [#one, #one], domains = [#pick, #always], index_maps = [#same], fill = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>} : (tensor<4xf64>, tensor<4xf64>, tensor<4xi1>) -> tensor<4xf64>
  return %0 : tensor<4xf64>
}

// CHECK-LABEL: func.func @flip_dynamic
func.func @flip_dynamic(%x: tensor<?xi8>) -> tensor<?xi8> {
  %zero = arith.constant 0 : index
  // CHECK: %[[N:.*]] = tensor.dim
  %n = tensor.dim %x, %zero : tensor<?xi8>
  // CHECK: "dodeca.contiguous"(%{{.*}}, %[[N]]) {{.*}} : (tensor<?xi8>, index) -> tensor<?xi8>
  %0 = "dodeca.contiguous"(%x, %n) {maps = [#dynamic], fill = 0 : i8, operandSegmentSizes = array<i32: 1, 0, 0, 0, 1>} : (tensor<?xi8>, index) -> tensor<?xi8>
  return %0 : tensor<?xi8>
}

// CHECK-LABEL: func.func @no_arithmetic
func.func @no_arithmetic(%n: index) -> (tensor<2xbf16>, tensor<3x?xi64>, tensor<2xf32>, tensor<2xi32>) {
  // CHECK: "dodeca.constant"() {value = dense<[1.000000e+00, 0xFF80]> : tensor<2xbf16>}
  %0 = "dodeca.constant"() {value = dense<[1.0, 0xFF80]> : tensor<2xbf16>} : () -> tensor<2xbf16>
  // CHECK: "dodeca.iota"(%{{.*}}) {axis = 1 : i64} : (index) -> tensor<3x?xi64>
  %1 = "dodeca.iota"(%n) {axis = 1 : i64} : (index) -> tensor<3x?xi64>
  // CHECK: "dodeca.cast"(%{{.*}}) : (tensor<2xbf16>) -> tensor<2xf32>
  %2 = "dodeca.cast"(%0) : (tensor<2xbf16>) -> tensor<2xf32>
  // CHECK: "dodeca.bitcast"(%{{.*}}) : (tensor<2xf32>) -> tensor<2xi32>
  %3 = "dodeca.bitcast"(%2) : (tensor<2xf32>) -> tensor<2xi32>
  // CHECK: call @helper
  %4 = call @helper(%3) : (tensor<2xi32>) -> tensor<2xi32>
  return %0, %1, %2, %4 : tensor<2xbf16>, tensor<3x?xi64>, tensor<2xf32>, tensor<2xi32>
}

func.func private @helper(%x: tensor<2xi32>) -> tensor<2xi32> {
  return %x : tensor<2xi32>
}
