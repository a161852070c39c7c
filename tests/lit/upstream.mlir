// Upstream's passes run on modules that hold the dialect, in one pipeline with ours.
// RUN: %dodeca-opt %s --pass-pipeline='builtin.module(func.func(cse,canonicalize),symbol-dce,dodeca-simplify,canonicalize)' | FileCheck %s

// CHECK-NOT: func.func private @unused
func.func private @unused(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "dodeca.add"(%x, %x) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// cse merges the two sizes, canonicalize folds their arithmetic, and simplify what hangs on them.
// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %[[C:.*]] = arith.constant 0 : index
// CHECK-NEXT:    %[[N:.*]] = tensor.dim %arg0, %[[C]]
// CHECK-NEXT:    %[[I:.*]] = "dodeca.iota"(%[[N]])
// CHECK-NEXT:    return %[[I]], %[[I]]
func.func @main(%x: tensor<?xf32>) -> (tensor<?xi64>, tensor<?xi64>) {
  %zero = arith.constant 0 : index
  %n = tensor.dim %x, %zero : tensor<?xf32>
  %again = arith.constant 0 : index
  %m = tensor.dim %x, %again : tensor<?xf32>
  %sum = arith.addi %m, %again : index
  %0 = "dodeca.iota"(%n) {axis = 0 : i64} : (index) -> tensor<?xi64>
  %1 = "dodeca.iota"(%sum) {axis = 0 : i64} : (index) -> tensor<?xi64>
  return %0, %1 : tensor<?xi64>, tensor<?xi64>
}
