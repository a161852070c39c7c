// RUN: %dodeca-opt %s --split-input-file --verify-diagnostics

func.func @shapes_differ(%x: tensor<2x3xf32>, %y: tensor<2x4xf32>) {
  // expected-error @below {{add: operand 0 is tensor<2x3xf32>, operand 1 is tensor<2x4xf32>}}
  %0 = "dodeca.add"(%x, %y) : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @ranks_differ(%x: tensor<3xf32>, %y: tensor<1x3xf32>) {
  // expected-error @below {{mul: operand 0 is tensor<3xf32>, operand 1 is tensor<1x3xf32>}}
  %0 = "dodeca.mul"(%x, %y) : (tensor<3xf32>, tensor<1x3xf32>) -> tensor<1x3xf32>
  return
}

// -----

func.func @dtypes_differ(%x: tensor<3xf32>, %y: tensor<3xf64>) {
  // expected-error @below {{mod: operand 0 is float32, operand 1 is float64}}
  %0 = "dodeca.mod"(%x, %y) : (tensor<3xf32>, tensor<3xf64>) -> tensor<3xf32>
  return
}

// -----

func.func @not_a_float(%x: tensor<3xi32>) {
  // expected-error @below {{exp2: operand 0 is int32; it takes float32, float16, bfloat16, float64}}
  %0 = "dodeca.exp2"(%x) : (tensor<3xi32>) -> tensor<3xi32>
  return
}

// -----

func.func @mod_of_bool(%x: tensor<3xi1>) {
  // expected-error @below {{mod: operand 0 is bool; it takes float32,}}
  %0 = "dodeca.mod"(%x, %x) : (tensor<3xi1>, tensor<3xi1>) -> tensor<3xi1>
  return
}

// -----

func.func @result_shape(%x: tensor<3xf32>) {
  // expected-error @below {{sqrt: the result is tensor<4xf32>, expected tensor<3xf32>}}
  %0 = "dodeca.sqrt"(%x) : (tensor<3xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @result_dtype(%x: tensor<3xf32>) {
  // expected-error @below {{less_than: the result is tensor<3xf32>, expected tensor<3xi1>}}
  %0 = "dodeca.less_than"(%x, %x) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @unknown_dtype(%x: tensor<3xui16>) {
  // expected-error @below {{element type ui16 of tensor<3xui16> is not one of dodeca's}}
  %0 = "dodeca.add"(%x, %x) : (tensor<3xui16>, tensor<3xui16>) -> tensor<3xui16>
  return
}

// -----

func.func @not_a_tensor(%x: f32) {
  // expected-error @below {{expected a ranked tensor, got f32}}
  %0 = "dodeca.sin"(%x) : (f32) -> f32
  return
}

// -----

func.func @unranked(%x: tensor<*xf32>) {
  // expected-error @below {{expected a ranked tensor, got tensor<*xf32>}}
  %0 = "dodeca.recip"(%x) : (tensor<*xf32>) -> tensor<*xf32>
  return
}

// -----

func.func @too_few_operands(%x: tensor<3xf32>) {
  // expected-error @below {{op expects exactly 2 operands, but got 1}}
  %0 = "dodeca.add"(%x) : (tensor<3xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @dynamic_sizes_fit_any(%x: tensor<?xf32>, %y: tensor<3xf32>) {
  %0 = "dodeca.add"(%x, %y) : (tensor<?xf32>, tensor<3xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @every_finding_is_reported(%x: tensor<3xf32>, %y: tensor<4xf32>) {
  // expected-error @below {{add: operand 0 is tensor<3xf32>, operand 1 is tensor<4xf32>}}
  %0 = "dodeca.add"(%x, %y) : (tensor<3xf32>, tensor<4xf32>) -> tensor<3xf32>
  // expected-error @below {{mul: operand 0 is tensor<3xf32>, operand 1 is tensor<4xf32>}}
  %1 = "dodeca.mul"(%x, %y) : (tensor<3xf32>, tensor<4xf32>) -> tensor<3xf32>
  return
}
