// RUN: %dodeca-opt %s --split-input-file --verify-diagnostics

func.func @axis_too_large(%x: tensor<2x3xf32>) {
  // expected-error @below {{sum_reduce: axis 2 is outside tensor<2x3xf32>, which has rank 2}}
  %0 = "dodeca.sum_reduce"(%x) {axis = 2 : i64} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @axis_negative(%x: tensor<2x3xf32>) {
  // expected-error @below {{max_reduce: axis -1 is outside tensor<2x3xf32>, which has rank 2}}
  %0 = "dodeca.max_reduce"(%x) {axis = -1 : i64} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @no_axis_to_reduce(%x: tensor<f32>) {
  // expected-error @below {{sum_reduce: axis 0 is outside tensor<f32>, which has rank 0}}
  %0 = "dodeca.sum_reduce"(%x) {axis = 0 : i64} : (tensor<f32>) -> tensor<f32>
  return
}

// -----

func.func @axis_is_no_integer(%x: tensor<2x3xf32>) {
  // expected-error @below {{dodeca.sum_reduce: axis must be an integer, got "rows"}}
  %0 = "dodeca.sum_reduce"(%x) {axis = "rows"} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @axis_missing(%x: tensor<2x3xf32>) {
  // expected-error @below {{attribute "axis" is expected but not provided}}
  %0 = "dodeca.sum_reduce"(%x) : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @axis_stays(%x: tensor<2x3xf32>) {
  // expected-error @below {{max_reduce: the result is tensor<2x1xf32>, expected tensor<2xf32>}}
  %0 = "dodeca.max_reduce"(%x) {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x1xf32>
  return
}

// -----

func.func @result_dtype(%x: tensor<2x3xf16>) {
  // expected-error @below {{sum_reduce: the result is tensor<2xf32>, expected tensor<2xf16>}}
  %0 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<2x3xf16>) -> tensor<2xf32>
  return
}
