// RUN: %dodeca-opt %s --split-input-file --verify-diagnostics

func.func @constant_shape() {
  // expected-error @below {{constant: the result is tensor<3xf32>, expected tensor<2xf32>}}
  %0 = "dodeca.constant"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<3xf32>
  return
}

// -----

func.func @constant_dtype() {
  // expected-error @below {{constant: the result is tensor<2xi64>, expected tensor<2xi32>}}
  %0 = "dodeca.constant"() {value = dense<[1, 2]> : tensor<2xi32>} : () -> tensor<2xi64>
  return
}

// -----

func.func @constant_dynamic() {
  // expected-error @below {{constant: the result is tensor<?xi32>, expected tensor<2xi32>}}
  %0 = "dodeca.constant"() {value = dense<[1, 2]> : tensor<2xi32>} : () -> tensor<?xi32>
  return
}

// -----

func.func @constant_scalar() {
  // expected-error @below {{constant: value must be dense elements, got 1.000000e+00 : f32}}
  %0 = "dodeca.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  return
}

// -----

func.func @iota_axis() {
  // expected-error @below {{iota: axis 1 is outside tensor<4xi64>, which has rank 1}}
  %0 = "dodeca.iota"() {axis = 1 : i64} : () -> tensor<4xi64>
  return
}

// -----

func.func @iota_dtype() {
  // expected-error @below {{iota: gives integers, not float32}}
  %0 = "dodeca.iota"() {axis = 0 : i64} : () -> tensor<4xf32>
  return
}

// -----

func.func @iota_extents() {
  // expected-error @below {{iota: tensor<4x?xi32> has 1 dynamic sizes, but 0 extents are given}}
  %0 = "dodeca.iota"() {axis = 0 : i64} : () -> tensor<4x?xi32>
  return
}

// -----

func.func @cast_shape(%x: tensor<4xf32>) {
  // expected-error @below {{cast: the result is tensor<2x2xf16>, expected tensor<4xf16>}}
  %0 = "dodeca.cast"(%x) : (tensor<4xf32>) -> tensor<2x2xf16>
  return
}

// -----

func.func @cast_dtype(%x: tensor<4xf32>) {
  // expected-error @below {{element type i4 of tensor<4xi4> is not one of dodeca's}}
  %0 = "dodeca.cast"(%x) : (tensor<4xf32>) -> tensor<4xi4>
  return
}

// -----

func.func @bitcast_width(%x: tensor<4xf32>) {
  // expected-error @below {{bitcast: float32 and int64 have no common bit pattern}}
  %0 = "dodeca.bitcast"(%x) : (tensor<4xf32>) -> tensor<4xi64>
  return
}

// -----

func.func @bitcast_bool(%x: tensor<4xi1>) {
  // expected-error @below {{bitcast: bool and int8 have no common bit pattern}}
  %0 = "dodeca.bitcast"(%x) : (tensor<4xi1>) -> tensor<4xi8>
  return
}

// -----

func.func @unknown_operation(%x: tensor<4xf32>) {
  // expected-error @below {{unregistered operation 'dodeca.tanh' found in dialect ('dodeca')}}
  %0 = "dodeca.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return
}
