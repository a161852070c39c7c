// Text that is not MLIR: the place, the line with a caret, and no traceback. The other modules of a
// split file are still worked on, and lines are counted from the start of the file.
// RUN: not %dodeca-opt %s --split-input-file 2>&1 | FileCheck %s --implicit-check-not=Traceback
// RUN: not %dodeca-opt - --split-input-file <%s 2>&1 | FileCheck %s --check-prefix=STDIN

func.func @sound() {
  return
}
// -----
func.func @parse(%x: tensor<4xf32>) {
  // CHECK: {{^.*}}malformed.mlir:[[#@LINE + 5]]:10: error: use of undeclared SSA value name
  // CHECK-NEXT: return %y
  // CHECK-NEXT: {{^}}         ^
  // CHECK-NOT: error
  // STDIN: <stdin>:[[#@LINE + 1]]:10: error: use of undeclared SSA value name
  return %y : tensor<4xf32>
}
// -----
func.func @verify(%x: tensor<4xf32>) {
  // CHECK: malformed.mlir:[[#@LINE + 2]]:8: error: sum_reduce: axis 1 is outside tensor<4xf32>
  // STDIN: <stdin>:[[#@LINE + 1]]:8: error: sum_reduce: axis 1 is outside tensor<4xf32>
  %0 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<4xf32>) -> tensor<f32>
  return
}
// -----
func.func @registered(%x: tensor<4xf32>) {
  // CHECK: malformed.mlir:[[#@LINE + 1]]:3: error: op expects exactly 1 operands, but got 2
  "dodeca.exp2"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}
